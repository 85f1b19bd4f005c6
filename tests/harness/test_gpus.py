"""GPU ids for jobs: never two with the same, freed by any death, chosen among those that may be seen."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import gpus
from harness.errors import UserError
from tests.guards.sources import ROOT, text_of

# Notes its ids in the file $0 before and after its work.
WORK = 'echo "+ $CUDA_VISIBLE_DEVICES" >> "$0"; sleep 0.2; echo "- $CUDA_VISIBLE_DEVICES" >> "$0"'
SMI = "#!/bin/sh\nprintf '0, GPU-aaaa-1\\n1, GPU-bbbb-2\\n'\n"


def command(count: int, *words: str) -> list[str]:
    return [sys.executable, "-m", "harness.gpus", str(count), *words]


@pytest.fixture
def start(tmp_path: Path):
    """Starts `harness.gpus` with four made-up GPUs and locks of this test; what still runs at the end is killed."""
    running = []

    def run(count: int, *words: str, **environment: str) -> subprocess.Popen:
        own = {"CUDA_VISIBLE_DEVICES": "0,1,2,3", gpus.FOLDER: str(tmp_path / "locks")}
        process = subprocess.Popen(
            command(count, *words), cwd=ROOT, env=os.environ | own | environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()


def wait_for(happened, what: str) -> None:
    limit = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < limit, what
        time.sleep(0.02)


class TestHandingOut:
    def test_of_many_jobs_no_two_ever_have_the_same_id(self, start, tmp_path: Path):
        notes = tmp_path / "notes"
        for process in [start(1 + number % 3, "sh", "-c", WORK, str(notes)) for number in range(8)]:
            assert process.communicate(timeout=60)[1] and process.returncode == 0
        used: set[str] = set()
        together = 0
        for line in notes.read_text().splitlines():
            sign, ids = line[0], set(line[2:].split(","))
            assert not (ids & used) if sign == "+" else ids <= used, line
            used = used | ids if sign == "+" else used - ids
            together = max(together, len(used))
        assert not used and together > 1, "jobs did run at once"

    def test_a_killed_job_frees_its_ids_for_one_that_waits(self, start, tmp_path: Path):
        holder = start(3, "sh", "-c", 'touch "$0"; exec sleep 60', str(tmp_path / "held"))
        wait_for((tmp_path / "held").exists, "the first job started")
        second = start(2, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        assert "waiting for 2 of 4 GPUs" in second.stderr.readline()
        assert second.poll() is None
        holder.send_signal(signal.SIGKILL)
        told, _ = second.communicate(timeout=30)
        assert told == "0,1\n"

    def test_ids_are_held_by_the_children_that_a_job_forks(self, start, tmp_path: Path):
        """An engine's workers can outlive their killed parent: the GPU is not free before they are gone."""
        forks = "import os, sys, time\nif os.fork() == 0:\n  open(sys.argv[1], 'w'); time.sleep(60)\ntime.sleep(60)"
        parent = start(4, sys.executable, "-c", forks, str(tmp_path / "forked"))
        wait_for((tmp_path / "forked").exists, "the job forked")
        child = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text())
        parent.kill()
        parent.wait()
        ids = {name: name for name in "0123"}
        try:
            assert not gpus.try_lease(ids, 1, tmp_path / "locks" / "machine")
        finally:
            os.kill(child, signal.SIGKILL)
        folder = tmp_path / "locks" / "machine"
        wait_for(lambda: gpus.try_lease(ids, 4, folder), "the ids are free")

    def test_a_job_hands_its_ids_out_again_to_what_it_starts(self, start):
        inner = command(1, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        told, said = start(2, *inner, CUDA_VISIBLE_DEVICES="2,3").communicate(timeout=30)
        assert told == "2\n", said

    def test_jobs_of_a_cluster_do_not_wait_for_each_other(self, start, tmp_path: Path):
        """Each sees its GPU as number 0, whichever it is."""
        start(1, "sh", "-c", 'touch "$0"; exec sleep 60', str(tmp_path / "held"), SLURM_JOB_ID="7")
        wait_for((tmp_path / "held").exists, "the first job started")
        told, _ = start(1, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", SLURM_JOB_ID="8").communicate(timeout=30)
        assert told == "0\n"

    @given(st.lists(st.integers(-3, 4).filter(bool), max_size=30))
    def test_a_lease_is_whole_or_nothing_and_never_overlaps(self, tmp_path_factory, asked: list[int]):
        """Positive: lease so many; negative: end the lease of that age, if there is one."""
        folder = tmp_path_factory.mktemp("locks")
        ids = {name: name for name in "abcd"}
        leases: list[dict[str, int]] = []
        for number in asked:
            if number > 0:
                held = gpus.try_lease(ids, number, folder)
                free = len(ids) - sum(map(len, leases))
                assert len(held) == (number if number <= free else 0)
                assert not any(held.keys() & other.keys() for other in leases)
                leases += [held] if held else []
            elif len(leases) >= -number:
                for opened in leases.pop(number).values():
                    os.close(opened)
        for opened in (opened for held in leases for opened in held.values()):
            os.close(opened)


class TestWhatMayBeSeen:
    @pytest.mark.parametrize(
        ("mask", "ids"),
        [
            ("", []), ("NoDevFiles", []), ("-1", []), ("3", ["3"]), ("2, 0", ["2", "0"]), ("0,0,1", ["0", "1"]),
            ("1,-1,0", ["1"]), ("GPU-8932f937,MIG-3/1/0", ["GPU-8932f937", "MIG-3/1/0"]),
        ],
    )  # fmt: skip
    def test_a_mask_from_outside_is_kept_to_as_cuda_reads_it(self, monkeypatch, mask: str, ids: list[str]):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
        monkeypatch.setattr(gpus, "_listed", dict)
        assert list(gpus.visible_ids()) == ids
        assert all("/" not in lock for lock in gpus.visible_ids().values())

    @pytest.fixture
    def two_gpus(self, monkeypatch, tmp_path: Path):
        smi = tmp_path / "nvidia-smi"
        smi.write_text(SMI)
        smi.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def test_without_a_mask_all_gpus_are_numbered_as_nvidia_smi_does(self, two_gpus):
        assert gpus.visible_ids() == {"0": "0", "1": "1"}

    def test_a_gpu_named_by_its_uuid_has_the_lock_of_its_number(self, two_gpus, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bbbb,0")
        assert gpus.visible_ids() == {"GPU-bbbb": "1", "0": "0"}

    def test_without_gpus_none_are_seen(self, monkeypatch):
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        assert gpus.visible_ids() == {}

    def test_more_than_may_be_seen_is_refused_at_once(self, monkeypatch, tmp_path: Path):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        monkeypatch.setenv(gpus.FOLDER, str(tmp_path))
        with pytest.raises(UserError, match=r"GPUs: 4 asked for, 2 visible \(CUDA_VISIBLE_DEVICES=0,1\)\. Fix: "):
            gpus.lease(4)


def test_a_step_without_gpus_sees_what_it_saw(start):
    told, said = start(0, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").communicate(timeout=30)
    assert told == "0,1,2,3\n" and not said


def test_mistakes_are_one_line(start):
    for words, said in {("no-such-program",): "no-such-program: no such program", (): "command: none given"}.items():
        process = start(0, *words)
        _, told = process.communicate(timeout=30)
        assert process.returncode == 2 and said in told and "Traceback" not in told


def test_every_rule_that_asks_for_gpus_is_given_their_ids():
    rules = [
        text
        for path in (ROOT / "harness/rules").glob("*.smk")
        for text in text_of(path.relative_to(ROOT)).split("\nrule ")[1:]
        if "    shell:" in text
    ]
    asking = [text for text in rules if "\n        gpu=" in text]
    assert len(asking) >= 6
    for text in rules:
        assert ("harness.gpus {resources.gpu} " in text) == (text in asking), text.splitlines()[0]
