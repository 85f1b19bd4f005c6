"""Provenance: what a figure needs so that it can be traced, and nothing that must not be told."""

import getpass
import json
import os
import socket
from pathlib import Path

import pytest

from harness.provenance import collect, hardware


def test_it_names_versions_hardware_seed_scale_and_the_settings():
    told = collect({"a": 1}, 7, "smoke")
    assert told["seed"] == 7 and told["scale"] == "smoke"
    assert {"python", "torch", "transformers", "snakemake"} <= told["versions"].keys()
    assert told["hardware"]["cores"] == len(os.sched_getaffinity(0))
    assert told["settings_sha256"] == collect({"a": 1}, None, "full")["settings_sha256"]
    assert told["settings_sha256"] != collect({"a": 2}, 7, "smoke")["settings_sha256"]


def test_it_holds_no_path_user_host_or_secret(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_a_user")
    text = json.dumps(collect({"path": "/home/someone/x"}, 0, "full"))
    assert "hf_secret" not in text and "/home/" not in text and str(Path.cwd()) not in text
    assert socket.gethostname() not in text.replace(hardware()["cpu"], "") or len(socket.gethostname()) < 4
    assert getpass.getuser() not in text or len(getpass.getuser()) < 5


def test_outside_a_repository_the_commit_is_unknown_and_not_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    told = collect({}, None, "full")
    assert told["commit"] is None and told["dirty"] is None
