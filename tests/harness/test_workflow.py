"""What a person reads when a run ends."""

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.workflow import advice_on_failure, asked_targets, check_targets, failed_steps, reports_of, tail

SNAKEMAKE_LOG = """\
rule train:
    log: logs/x/train/a.log
[Sun Nov 29 15:08:00 2026]
Error in rule train:
    message: None
    jobid: 2
    output: results/x/manifest.json
    log: logs/x/train/a b.log (check log file(s) for error details)
    shell:
        python -m harness.training
Error in rule without_log:
    jobid: 3
Error in rule report:
    log: logs/x/report.log (check log file(s) for error details)
"""


def test_failed_steps_and_their_logs_are_found():
    assert failed_steps(SNAKEMAKE_LOG) == {"logs/x/train/a b.log": "train", "logs/x/report.log": "report"}
    assert failed_steps("rule train:\n    log: x\n") == {}


def test_the_tail_of_a_log_is_its_last_lines_whatever_it_holds(tmp_path: Path):
    path = tmp_path / "x.log"
    path.write_bytes(
        bytes(range(256)) * 200 + b"\n" + b"\n".join(b"line %d" % number for number in range(30)) + b"\n\n"
    )
    assert tail(path) == [f"line {number}" for number in range(15, 30)]
    path.write_text("10%\r20%\r30%\ndone\n")
    assert tail(path) == ["10%", "20%", "30%", "done"]
    path.write_text("")
    assert tail(path) == [] == tail(tmp_path / "none.log")


def test_advice_names_the_step_shows_the_end_and_repeats_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {"run.log": SNAKEMAKE_LOG, "logs/x/train/a b.log": "error: no room. Fix: buy some\n"}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    report = Path("results/my_model/report/report.html")
    report.parent.mkdir(parents=True)
    report.write_text("")
    told = advice_on_failure(["run.log"], ["/usr/bin/snakemake", "--cores", "all", "reproduce_my_model"])
    assert "step train failed; the end of logs/x/train/a b.log:\n  | error: no room. Fix: buy some" in told
    assert f"report: {report}" in told
    assert told.endswith("\n  snakemake --cores all reproduce_my_model")


def test_reports_are_named_only_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert reports_of(["snakemake", "reproduce_a", "--cores", "1"]) == []


def test_an_unknown_target_is_answered_with_the_nearest_and_all_that_there_are():
    targets = ["reproduce_qwen3_8b", "plan_qwen3_8b", "gate_qwen3_8b", "gate"]
    rules = ["help", "train", *targets]
    check_targets(["reproduce_qwen3_8b", "help", "train", "results/x", "README.md"], rules)
    with pytest.raises(UserError, match=r"reproduce_qwen3_8: no such target\. Fix: use reproduce_qwen3_8b;") as caught:
        check_targets(["reproduce_qwen3_8"], rules)
    assert str(caught.value).splitlines()[1:] == [f"  {name}" for name in targets]
    with pytest.raises(UserError, match=r"nope: no such target\. Fix: use one of these; the targets are:\n  repro"):
        check_targets(["nope"], rules)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["-n", "nope"], ["nope"]),
        (["--cores", "all", "reproduce_toy", "gate"], ["reproduce_toy", "gate"]),
        (["--quiet", "host", "--", "reproduce_toy"], ["reproduce_toy"]),
        (["--cores", "1"], []),
    ],
)
def test_targets_are_told_from_the_values_of_options(words: list[str], wanted: list[str]):
    assert asked_targets(["snakemake", *words]) == wanted


def test_the_verdicts_of_a_gate_that_failed_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("run.log").write_text("Error in rule judge:\n    log: logs/x/gate.log (check log file(s) for error details)\n")
    for target in ("my_model", "other"):
        page = Path("results", target, "gate", "gate.md")
        page.parent.mkdir(parents=True)
        page.write_text("")
    told = advice_on_failure(["run.log"], ["snakemake", "--cores", "all", "gate_my_model"])
    assert "verdicts: results/my_model/gate/gate.md" in told and "other" not in told
    assert "verdicts: results/other/gate/gate.md" in advice_on_failure(["run.log"], ["snakemake", "gate"])
