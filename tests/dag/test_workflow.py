"""The DAG as a person meets it: targets, dry runs, what runs again after a change, failures, kills."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.config import load_all
from tests.clusters.small import two_drafts
from tests.dag.conftest import TARGET, Toy

CODE_AFTER_CAPTURE = {"train", "lint", "measure", "match", "parity", "lossless", "report"}
ALL = {"settings", "verifier", "prompts", "capture", *CODE_AFTER_CAPTURE}
AFTER_CAPTURE = {"settings", *CODE_AFTER_CAPTURE}
AFTER_PROMPTS = ALL - {"verifier", "prompts"}


def test_without_a_target_the_targets_are_listed(toy: Toy):
    done = toy.snakemake()
    assert done.returncode == 0
    for target in [*load_all(), "toy", "toy_smoke"]:
        assert f"  reproduce_{target}" in done.stdout


def test_a_dry_run_of_every_target_is_clean_and_leaves_no_file(toy: Toy):
    before, spent = toy.files(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = toy.snakemake("-n", *(f"reproduce_{target}" for target in [*load_all(), "toy"]))
    assert done.returncode == 0, done.stdout
    assert "Error" not in done.stdout and "Warning" not in done.stdout
    assert toy.files() == before
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - spent < 20, "seconds for all targets together"
    for rule in ("capture", "train", "measure"):
        for target, gpus in {"llama3_70b": 4, "qwen3_8b": 1, "toy": 0}.items():
            assert f"gpu={gpus}," in _resources(done.stdout, rule, target), (rule, target)


def _resources(told: str, rule: str, target: str) -> str:
    """The resources of the first job of a rule for a target in the text of a dry run."""
    jobs = re.findall(rf"rule {rule}:\n((?:    .*\n)*)", told)
    job = next(job for job in jobs if re.search(rf"wildcards: target={target}\b", job))
    return job.partition("resources: ")[2]


@pytest.mark.slow
def test_a_machine_that_is_too_small_is_told_before_the_first_job(toy: Toy):
    toy.replace(REPRODUCTION, "  disk_gb: 5", "  disk_gb: 5e7")
    done = toy.snakemake("--cores", "1", TARGET)
    assert done.returncode == 2 and "Traceback" not in done.stdout
    assert "reproduce_toy_smoke: this machine cannot run it:" in done.stdout
    assert "disk: 50,000,000 GB needed" in done.stdout and "reproduce_smollm2_135m" in done.stdout
    assert not toy.ran() and not (toy.root / "results").exists()
    assert toy.snakemake("-n", TARGET).returncode == 0, "looking is allowed anywhere"


@pytest.mark.slow
def test_a_target_that_there_is_none_of_is_answered_with_those_that_there_are(toy: Toy):
    done = toy.snakemake("-n", "reproduce_toi")
    assert done.returncode == 2 and "reproduce_toi: no such target. Fix: use reproduce_toy;" in done.stdout
    assert "\n  reproduce_qwen3_8b_mini\n" in done.stdout
    done = toy.snakemake("-n", "nope")
    assert done.returncode == 2 and "nope: no such target. Fix: use one of these" in done.stdout


def test_every_step_runs_once_and_then_nothing_is_left_to_do(finished_toy: Toy):
    steps = sorted(f"{row['step']} {row['of']}".strip() for row in finished_toy.ran())
    assert steps == [
        "capture", "data", "lint", "lossless eagle3", "lossless ngram", "match eagle3", "match ngram",
        "measure eagle3", "measure ngram", "measure none",
        "parity", "reports", "training eagle3", "verifiers",
    ]  # fmt: skip
    assert finished_toy.jobs() == set()
    assert finished_toy.jobs("reproduce_toy") == ALL - {"verifier"}, "the verifier is shared by both scales"


def test_a_timed_step_had_the_machine_alone_although_there_were_cores(finished_toy: Toy):
    rows = sorted(finished_toy.ran(), key=lambda row: row["started"])
    alone = [row for row in rows if row["step"] not in SHARING]
    assert len(alone) > 5
    for step in alone:
        assert all(
            other is step or other["ended"] <= step["started"] or step["ended"] <= other["started"] for other in rows
        )


def test_servers_are_timed_one_after_another_between_training_and_comparing(finished_toy: Toy):
    order = [row["step"] for row in sorted(finished_toy.ran(), key=lambda row: row["started"])]
    timed = [place for place, step in enumerate(order) if step == "measure"]
    assert timed == list(range(timed[0], timed[-1] + 1))
    assert order.index("training") < timed[0] and order.index("lint") < timed[0]


def test_every_step_leaves_its_log_and_its_benchmark(finished_toy: Toy):
    root = finished_toy.root
    logs = {str(path.relative_to(root / "logs")) for path in (root / "logs").rglob("*.log")}
    target = "toy_smoke"
    assert {f"{target}/capture.log", f"{target}/train/eagle3.log", f"{target}/measure/none.log"} <= logs
    costs = root / "results" / target / "benchmarks"
    assert {"capture.tsv", "report.tsv", "prompts.tsv"} <= {path.name for path in costs.iterdir()}


# Steps that only read results: two may run at once.
SHARING = {"lint", "lossless", "match", "parity", "reports", "speed"}
REPRODUCTION = "reproductions/toy/reproduction.yaml"
EIGHT_BITS = "baselines:\n", "quantised: {scheme: int8, algorithms: [eagle3]}\nbaselines:\n"
SPEED = "evaluate:\n", "evaluate:\n  speed: {draft_tokens: {eagle3: [1, 2, 3]}, requests: 4, concurrency: [1]}\n"
MATCHED = {"settings", "match", "report"}
REPLY = "      max_new_tokens: 48\n  training"
CHANGES = [
    ("a comment in the settings", REPRODUCTION, "verifier:\n", "verifier:  # the embedded one\n", set()),
    ("a comment and a docstring in code", "harness/capture/store.py", '"""', '"""Reworded. ', set()),
    ("the learning rate", REPRODUCTION, "learning_rate: ", "learning_rate: 7e-3  # ", AFTER_CAPTURE),
    ("a knob of the algorithm", REPRODUCTION, "    speculative_tokens: 3", "    speculative_tokens: 2", AFTER_CAPTURE),
    ("the length of training replies", REPRODUCTION, REPLY, REPLY.replace("48", "40"), {"capture", *AFTER_CAPTURE}),
    ("the data seed", REPRODUCTION, "  seed: 1\n  train:", "  seed: 2\n  train:", {"prompts", *AFTER_PROMPTS}),
    ("a known answer", REPRODUCTION, "verifier_checks:", "verifier_checks:\n  - {prompt: a, answer: b}", ALL),
    ("n-gram's look-up", REPRODUCTION, "ngram:\n", "ngram:\n    lookup_max: 5\n", {"measure", "lossless", *MATCHED}),
    ("a gate", REPRODUCTION, "accuracy_drop_max: 1.0", "accuracy_drop_max: 0.9", {"settings", "report"}),
    ("the near-tie limit", REPRODUCTION, "evaluate:\n", "evaluate:\n  near_tie_nats: 0.4\n", MATCHED),
    (
        "the false alarm rate",
        REPRODUCTION,
        "evaluate:\n",
        "evaluate:\n  sampling: {false_alarm_rate: 0.01}\n",
        {"settings", "lossless", "report"},
    ),
    ("code of the report", "reports/gates.py", "", "X = 1\n", {"report"}),
    ("code of the algorithm", "algorithms/eagle3/drafting.py", "", "X = 1\n", CODE_AFTER_CAPTURE),
    ("code of the capture", "harness/capture/run.py", "", "X = 1\n", {"capture", *CODE_AFTER_CAPTURE}),
    ("code of the plumbing", "harness/progress.py", "", "X = 1\n", set()),
]


@pytest.mark.slow
def test_eight_bits_and_draft_lengths_add_their_steps_and_no_others(toy: Toy):
    toy.replace(REPRODUCTION, *EIGHT_BITS)
    toy.replace(REPRODUCTION, *SPEED)
    done = toy.snakemake("--cores", "4", TARGET)
    assert done.returncode == 0, done.stdout
    steps = sorted(f"{row['step']} {row['of']}".strip() for row in toy.ran())
    assert steps == [
        "capture", "data", "draft", "lint", "lossless eagle3", "lossless ngram", "match eagle3", "match eagle3_int8",
        "match ngram", "measure eagle3", "measure eagle3_int8", "measure ngram", "measure none", "measure none_int8",
        "parity", "reports", "speed eagle3", "sweep eagle3", "sweep eagle3", "training eagle3", "verification",
        "verifier", "verifiers",
    ]  # fmt: skip
    swept = toy.root / "results/toy_smoke/sweep/eagle3"
    assert {path.name for path in swept.iterdir()} == {"k1.json", "k2.json"}, "its own length is measured anyway"


@pytest.mark.slow
def test_a_capture_that_is_cut_into_jobs_runs_them_all_and_then_joins_them(toy: Toy):
    toy.replace(REPRODUCTION, "capture:\n", "capture:\n  jobs: 3\n")
    done = toy.snakemake("--cores", "2", "results/toy_smoke/capture/manifest.json")
    assert done.returncode == 0, done.stdout
    *jobs, last = [f"{row['step']} {row['of']}".strip() for row in toy.ran() if row["step"] == "capture"]
    assert sorted(jobs) == ["capture 0", "capture 1", "capture 2"] and last == "capture"


@pytest.mark.slow
@pytest.mark.parametrize(("what", "name", "old", "new", "expected"), CHANGES, ids=[row[0] for row in CHANGES])
def test_a_change_runs_again_what_depends_on_it_and_nothing_else(
    finished_toy: Toy, what: str, name: str, old: str, new: str, expected: set[str]
):
    path = finished_toy.root / name
    before, times = path.read_text(), path.stat()
    try:
        finished_toy.replace(name, old, new)
        assert finished_toy.jobs() == expected
    finally:
        path.write_text(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.slow
def test_a_result_that_was_touched_but_not_changed_runs_nothing_again(finished_toy: Toy):
    (finished_toy.root / "results/toy_smoke/prompts/train.jsonl").touch()
    assert finished_toy.jobs() == set()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  epochs: 6", "  epoch: 6", "training.epoch: no such key. Fix: epochs"),
        pytest.param(
            "  seed: 1", '  seed: "1"', "data.seed = '1': Input should be a valid int", marks=pytest.mark.slow
        ),
        pytest.param(
            "  eagle3:\n", "  eagle33:\n", "no algorithm called 'eagle33'. Fix: eagle3", marks=pytest.mark.slow
        ),
        pytest.param("serve:\n", "needs: {}\nserve:\n", "key 'needs' is given twice", marks=pytest.mark.slow),
    ],
)
def test_a_fault_in_the_settings_ends_the_run_before_any_job_with_one_line(toy: Toy, old: str, new: str, said: str):
    toy.replace(REPRODUCTION, old, new)
    done = toy.snakemake("--cores", "1", TARGET)
    assert done.returncode == 2
    assert said in done.stdout and REPRODUCTION in done.stdout
    assert "Traceback" not in done.stdout and not (toy.root / "results").exists()


def test_settings_on_the_command_line_are_refused(toy: Toy):
    done = toy.snakemake("-n", TARGET, "--config", "epochs=1")
    assert done.returncode == 2
    assert "--config epochs: is read by no step" in done.stdout


def test_a_failed_step_shows_the_end_of_its_log_and_how_to_go_on(toy: Toy):
    prompts = "results/toy_smoke/prompts/train.jsonl"
    done = toy.snakemake("--cores", "2", prompts, STUB_FAIL="data")
    assert done.returncode == 1
    assert "step prompts failed; the end of logs/toy_smoke/prompts.log:" in done.stdout
    assert "| error: models/x: no such folder. Fix: make it" in done.stdout and "| line 99" in done.stdout
    assert "line 20" not in done.stdout, "only the end of the log"
    assert f"snakemake --cores 2 {prompts}" in done.stdout.partition("What to do:")[2]
    assert toy.snakemake("--cores", "2", prompts).returncode == 0
    assert [row["step"] for row in toy.ran()] == ["verifiers", "data"], "the finished step ran again"


@pytest.mark.slow
def test_a_missed_gate_fails_the_run_and_keeps_the_report(toy: Toy):
    toy.replace("reports/__main__.py", "raise SystemExit\n", "raise SystemExit(1)\n")
    done = toy.snakemake("--cores", "2", TARGET)
    assert done.returncode == 1
    report = "results/toy_smoke/report/report.html"
    assert (toy.root / report).exists() and f"report: {report}" in done.stdout


def _wait_for(path: Path) -> None:
    limit = time.monotonic() + 240
    while not path.exists():
        assert time.monotonic() < limit, f"{path} did not appear"
        time.sleep(0.1)


def _start_long_capture(toy: Toy) -> tuple[subprocess.Popen, str]:
    """Start a run whose capture waits after its second shard; returns it and the capture's declared output."""
    manifest = "results/toy_smoke/capture/manifest.json"
    run = subprocess.Popen(
        toy.command("--cores", "1", manifest), cwd=toy.root, env=os.environ | {"STUB_SLEEP": "capture"},
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    _wait_for((toy.root / manifest).parent / "shard_1")
    return run, manifest


@pytest.mark.slow
def test_an_interrupted_run_ends_at_once_with_all_its_steps_and_goes_on_later(toy: Toy):
    run, manifest = _start_long_capture(toy)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
    told, _ = run.communicate(timeout=30)
    assert run.returncode != 0 and "What to do:" in told
    with pytest.raises(ProcessLookupError):
        os.killpg(run.pid, 0)
    first = (toy.root / manifest).with_name("shard_0").read_text()
    assert toy.snakemake("--cores", "1", manifest).returncode == 0, "no lock is left"
    assert (toy.root / manifest).with_name("shard_0").read_text() == first


@pytest.mark.slow
def test_after_a_kill_a_second_run_goes_on_and_a_live_run_is_not_disturbed(toy: Toy):
    first, manifest = _start_long_capture(toy)
    capture = (toy.root / manifest).parent
    try:
        release = [sys.executable, "-m", "harness.runlock"]
        subprocess.run(release, cwd=toy.root, check=True)
        second = toy.snakemake("--cores", "1", manifest)
        assert second.returncode != 0 and "cannot be locked" in second.stdout, second.stdout
        finished_shard = (capture / "shard_0").read_text()
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
    subprocess.run(release, cwd=toy.root, check=True)
    third = toy.snakemake("--cores", "1", manifest)
    assert third.returncode == 0, third.stdout
    assert (capture / "shard_0").read_text() == finished_shard, "a finished shard was made again"


def test_no_step_starts_beside_a_job_of_slurm_that_a_killed_run_left(tmp_path: Path):
    toy, queue = two_drafts(tmp_path), tmp_path / "squeue"
    run = "0a1b2c3d-0000-4000-8000-00000000000f"
    queue.write_text(f"#!/bin/sh\necho '7|RUNNING|{run}|{toy.root}|rule_capture_wildcards_target_toy'\n")
    queue.chmod(0o755)
    refused = toy.snakemake("--cores", "1", TARGET, PATH=os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    assert refused.returncode == 2 and not toy.ran(), refused.stdout
    assert refused.stdout.splitlines()[-1].startswith("error: this folder: another run's job 7 (capture, running)")
    assert not list(toy.root.glob(".snakemake/locks/*"))


def test_lint_has_nothing_to_say_but_that_one_environment_serves_all_rules(toy: Toy):
    told = toy.snakemake("--lint").stdout
    found = {line.strip() for line in told.splitlines() if line.startswith("    * ")}
    assert found == {"* Specify a conda environment or container for each rule.:"}, told


def test_the_snakefiles_are_formatted(toy: Toy):
    binaries = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": os.pathsep.join([binaries, os.environ["PATH"]])}
    formatter = shutil.which("snakefmt", path=environment["PATH"])
    assert formatter, "snakefmt is in the lock"
    done = subprocess.run(
        [formatter, "--check", "Snakefile", "harness/rules"], cwd=toy.root, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
