"""Sampled replies against the verifier's own distribution: the reference, the verdict, the file."""

import json
import sys

import numpy as np
import pytest
import torch

from harness.errors import UserError
from harness.evaluation import lossless
from harness.evaluation.__main__ import main
from harness.evaluation.lossless import Reference, placed, run_lossless, score
from harness.evaluation.settings import LosslessSettings
from harness.files import write_jsonl
from harness.verifiers.asking import load_model, parameters
from tests import toy

TEMPERATURE, TOKENS, SAMPLES = 0.7, 16, 24
SETTINGS = LosslessSettings.model_validate(
    {"sampling": {"temperature": TEMPERATURE, "max_new_tokens": TOKENS}, "seed": 0, "scale": "smoke"}
)
PROMPTS = {"a": [72, 105, 33], "b": [110, 111, 119, 32, 63, 7]}


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    return toy.write_verifier(tmp_path_factory.mktemp("lossless") / "verifier")


@pytest.fixture(scope="module")
def reference(verifier):
    return Reference(verifier)


@torch.no_grad()
def sampled(reference, seed, pick):
    """Rows of samples.jsonl; `pick` chooses a token of each row of logits, given its place in a step of 3 drafts."""
    torch.manual_seed(seed)
    rows = []
    for prompt_id, prompt in PROMPTS.items():
        tokens = torch.tensor([prompt] * SAMPLES)
        for place in range(TOKENS):
            logits = reference.model(tokens).logits[:, -1]
            tokens = torch.cat((tokens, pick(logits, place)[:, None]), dim=1)
        for reply in tokens[:, len(prompt) :].tolist():
            rows.append(
                {"id": prompt_id, "prompt_token_ids": prompt, "token_ids": reply, "likeliest": [], "spec": None}
            )
    return rows


def from_softmax(logits, _):
    return (logits / TEMPERATURE).softmax(-1).multinomial(1)[:, 0]


def greedy_bonus(logits, place):
    """Of a server whose drafts are always accepted: every fourth token is the bonus."""
    return logits.argmax(-1) if place and place % 4 == 0 else from_softmax(logits, place)


def drafting(rows):
    """The same rows as a server tells them that accepts all of 3 drafts in every step."""
    steps = -(-(TOKENS - 1) // 4)
    return [row | {"spec": {"accepted_per_step": [3] * steps, "drafted_per_step": [3] * steps}} for row in rows]


def test_the_reference_equals_a_pass_over_each_whole_reply(reference):
    replies = [[5, 9, 200, 31], [7, 8], [1, 2, 3]]
    logits = reference.logits(PROMPTS["b"], replies)
    for row, reply in enumerate(replies):
        with torch.no_grad():
            whole = reference.model(torch.tensor([[*PROMPTS["b"], *reply]])).logits[0]
        wanted = whole[len(PROMPTS["b"]) - 1 : -1]
        torch.testing.assert_close(logits[row, : len(reply)], wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(reference.logits(PROMPTS["b"], [[5]])[0], logits[0, :1])


def test_ranks_and_hits_follow_the_softmax(reference):
    row = {"id": "a", "prompt_token_ids": PROMPTS["a"], "token_ids": [4, 6], "likeliest": [(4, -1.0), (6, -2.0)]}
    rows = placed([row | {"spec": None}], "it")
    draws, gap = score(rows, reference, TEMPERATURE, seed=0)
    logits = reference.logits(PROMPTS["a"], [[4, 6]])[0].double()
    chance = (logits / TEMPERATURE).softmax(-1)
    for i, token in enumerate((4, 6)):
        above = float(chance[i][chance[i] > chance[i, token]].sum())
        assert above - 1e-6 <= draws.rank_N[i] <= above + float(chance[i, token]) + 1e-6
        assert draws.top_N[i] == pytest.approx(float(chance[i].max()), rel=1e-5)
    said = logits.log_softmax(-1)
    assert gap == pytest.approx(float((abs(said[0, 4] + 1) + abs(said[1, 6] + 2)) / 2), rel=1e-4)


def test_a_right_sampler_passes_and_the_file_says_what_was_tested(verifier, reference):
    base, variant = sampled(reference, 1, from_softmax), drafting(sampled(reference, 2, from_softmax))
    found = run_lossless(verifier, base, variant, SETTINGS)
    assert found["lossless"] and found["compared_with"] == "reference" and found["control"] is None
    assert found["found"].startswith("no difference")
    rows = {(row["metric"], row.get("benchmark", "")): row["value"] for row in found["figures"]}
    assert rows["sampling_p", ""] == found["p_value"] >= 0.001
    replies = len(PROMPTS) * SAMPLES
    places = ("plain", "draft", "bonus", "all")
    assert [rows["sampling_positions", place] for place in places] == [n * replies for n in (1, 12, 3, 16)]
    biases = [rows["sampling_detectable_bias", place] for place in ("all", "draft", "bonus", "plain")]
    assert biases[0] > 0 and biases == sorted(biases) and biases[-1] < 1


def test_a_bonus_token_that_is_always_the_likeliest_is_named(verifier, reference):
    base, variant = sampled(reference, 1, from_softmax), drafting(sampled(reference, 2, greedy_bonus))
    found = run_lossless(verifier, base, variant, SETTINGS)
    assert not found["lossless"] and found["p_value"] < 1e-6
    assert found["found"].startswith(
        "tokens behind drafts that were all accepted are not distributed as the verifier's"
    )
    assert "its likeliest token makes 100.0% of them" in found["found"]


def test_a_temperature_that_is_ignored_is_a_fault(verifier, reference):
    base = sampled(reference, 1, from_softmax)
    variant = drafting(sampled(reference, 2, lambda logits, _: logits.softmax(-1).multinomial(1)[:, 0]))
    assert not run_lossless(verifier, base, variant, SETTINGS)["lossless"]


def test_a_base_that_differs_from_the_reference_leaves_the_control_to_decide(verifier, reference):
    """Both servers sample at another temperature than they were told: not the draft's fault."""
    hotter = lambda logits, _: (logits / 1.3).softmax(-1).multinomial(1)[:, 0]  # noqa: E731
    base, variant = sampled(reference, 1, hotter), drafting(sampled(reference, 2, hotter))
    found = run_lossless(verifier, base, variant, SETTINGS)
    assert found["compared_with"] == "control" and found["lossless"] and found["control"]["p_value"] < 0.001


def test_replies_whose_steps_left_no_record_are_tested_as_one(reference):
    rows = [{"token_ids": [1, 2, 3], "spec": {"accepted_per_step": [0], "drafted_per_step": [1]}}]
    assert placed(rows, "it")[0]["places"] == ["drafting"] * 3


def test_no_samples_and_a_drafting_base_are_refused(verifier):
    with pytest.raises(UserError, match=r"the base: no sampled replies. Fix:"):
        placed([], "the base")
    row = {"token_ids": [1], "spec": {"accepted_per_step": [], "drafted_per_step": []}}
    with pytest.raises(UserError, match=r"it drafted. Fix:"):
        run_lossless(verifier, [row], [row], SETTINGS)


def test_the_command_writes_the_file_with_provenance(verifier, reference, tmp_path, monkeypatch):
    write_jsonl(tmp_path / "none" / "samples.jsonl", sampled(reference, 1, from_softmax))
    write_jsonl(tmp_path / "variant" / "samples.jsonl", drafting(sampled(reference, 2, from_softmax)))
    arguments = ["lossless", "--settings", SETTINGS.model_dump_json(), "--base", tmp_path / "none"]
    arguments += ["--variant", tmp_path / "variant", "--verifier", verifier, "--out", tmp_path / "lossless.json"]
    monkeypatch.setattr(sys, "argv", ["evaluation", *map(str, arguments)])
    main()
    found = json.loads((tmp_path / "lossless.json").read_text())
    assert found["provenance"]["scale"] == "smoke" and found["positions"] == len(PROMPTS) * SAMPLES * TOKENS
    assert np.isfinite(found["p_value"]) and found["logprob_gap_nats"] is None


def test_a_large_verifier_is_its_own_reference_in_its_own_dtype(tmp_path, monkeypatch):
    verifier = toy.write_verifier(tmp_path / "verifier", dtype=torch.bfloat16)
    count = parameters(verifier)
    assert count == load_model(verifier, dtype=torch.float32).num_parameters()
    for most, dtype in ((count, torch.float32), (count - 1, torch.bfloat16)):
        monkeypatch.setattr(lossless, "FLOAT32_REFERENCE_MAX", most)
        assert Reference(verifier).model.dtype == dtype
