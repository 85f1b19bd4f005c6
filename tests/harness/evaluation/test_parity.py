"""The reference walk of harness.evaluation.parity: by hand, and against plain drafting one step at a time."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import algorithms
from algorithms.eagle3.drafting import draft_steps
from harness.checkpoint import write_checkpoint
from harness.errors import UserError
from harness.evaluation.loop import States, load_draft, predict
from harness.evaluation.parity import compare, falls_short
from harness.evaluation.settings import ParitySettings
from harness.evaluation.walk import inside_reply, walk
from harness.verifiers.weights import load_weights
from tests import toy

PROMPT, K, AUX = 4, 3, [1, 3, 6]

EXACT = ParitySettings(dtype="float32", bootstrap_resamples=200, seed=0, margin_tokens=0.0, scale="smoke")


def drafts_for(token_ids, right):
    """Drafts [R, K] behind every token of the reply, of which the first `right[t]` of row t equal it, the rest do not.

    Row t follows token t+1 of the whole; the rows inside the prompt are left out.
    """
    drafts = torch.full((len(token_ids) - 1, K), -1)
    for row, count in enumerate(right):
        known = token_ids[row + 2 : row + 2 + count]
        drafts[row, : len(known)] = torch.tensor(known, dtype=torch.long)
    return drafts[PROMPT - 1 :]


def test_a_walk_of_a_reply_by_hand():
    token_ids = list(range(100, 104)) + list(range(10))  # 4 tokens of prompt, 10 of reply
    right = [0] * 13
    # The prefill gives reply token 0. Its row is 3; 2 accepted plus the bonus lead to token 3, row 6; and so on.
    right[3], right[6], right[7] = 2, 0, 3
    assert walk(drafts_for(token_ids, right), token_ids, PROMPT) == [2, 0, 3, 0]


def test_drafts_beyond_the_reply_are_neither_right_nor_wrong():
    token_ids = list(range(6))  # the reply's tokens 4 and 5: one verify step, of which one draft can be checked
    assert walk(drafts_for(token_ids, [0, 0, 0, 3, 0]), token_ids, PROMPT) == [1]
    assert walk(drafts_for(token_ids, [0, 0, 0, 0, 0]), token_ids, PROMPT) == [0]


def test_a_reply_of_one_token_has_no_verify_step():
    assert walk(drafts_for([0] * 5, [0] * 4), [0] * 5, PROMPT) == []


def test_served_drafts_beyond_the_end_are_left_out():
    assert inside_reply([2, 3], 7) == [2, 3]  # 1 + 3 + 3: the last bonus token is beyond, its drafts are not
    assert inside_reply([2, 3], 6) == [2, 2]
    assert inside_reply([2, 3], 5) == [2, 1]


@given(st.lists(st.integers(0, K), min_size=1, max_size=10), st.integers(0, K))
def test_what_is_predicted_and_what_is_served_count_alike(accepted, cut):
    """A server that accepted `accepted`, its reply cut `cut` tokens into the last step, walks to the same counts."""
    emitted = [1 + sum(a + 1 for a in accepted[:i]) for i in range(len(accepted) + 1)]
    length = max(emitted[-1] - cut, emitted[-2] + 1)
    token_ids = [900, 901, 902, 903, *range(length)]
    right = [0] * (len(token_ids) - 1)
    for start, count in zip(emitted, accepted, strict=False):
        right[PROMPT + start - 2] = count
    assert walk(drafts_for(token_ids, right), token_ids, PROMPT) == inside_reply(accepted, length)


def row(prompt_id, accepted, source="word_problems"):
    length = 1 + sum(a + 1 for a in accepted)
    spec = {"accepted_per_step": accepted, "drafted_per_step": [K] * len(accepted)}
    return {"id": prompt_id, "source": source, "prompt_token_ids": [0], "token_ids": list(range(length)), "spec": spec}


def test_equal_steps_are_within_and_show_every_length():
    rows = [row("a", [2, 1]), row("b", [0, 3, 3]), row("c", [1], "instructions")]
    found = compare(rows, [[2, 1], [0, 3, 3], [1]], K, EXACT)
    assert found["within"]
    math = found["benchmarks"]["word_problems"]
    assert (math["predicted_length"], math["served_length"]) == (2.8, 2.8)  # 1 + 9 / 5
    assert (math["gap"], math["low"], math["high"]) == (0, 0, 0)
    assert math["served_per_position"] == [0.8, 0.6, 0.4]
    assert math["replies_with_equal_steps"] == 2
    assert found["benchmarks"]["instructions"]["served_length"] == 2.0


def test_a_server_that_drafts_worse_is_not_within():
    rows = [row(str(i), [0, 0, 1]) for i in range(10)]
    found = compare(rows, [[2, 2] for _ in rows], K, EXACT)
    benchmark = found["benchmarks"]["word_problems"]
    assert not found["within"]
    assert benchmark["gap"] == pytest.approx(2 - 1 / 3)
    assert benchmark["low"] > 0


def test_a_draft_falls_short_of_three_quarters_of_its_validation_or_where_it_is_useless():
    assert falls_short([1.7], 2.0) and not falls_short([1.8], 2.0)
    assert falls_short([1.1], None) and not falls_short([1.3], None)


def test_a_draft_that_does_well_on_one_benchmark_does_not_fall_short_because_of_others():
    """As on the main job's EAGLE-3: word problems, which it learnt, beside MT-Bench, which it did not."""
    assert not falls_short([3.06, 1.24], 1.91)
    assert falls_short([1.3, 1.24], 1.91)


def test_a_tenth_of_a_token_is_too_little_to_doubt_a_checkpoint():
    assert not falls_short([1.0], 1.09) and falls_short([1.0], 1.11)


@pytest.mark.parametrize("rows", [[], [row("a", [1]) | {"spec": None}]])
def test_replies_without_verify_steps_are_refused(rows):
    with pytest.raises(UserError, match=r"no record of verify steps. Fix:"):
        compare(rows, [[1] for _ in rows], K, EXACT)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """(verifier folder, draft folder): a toy verifier in float32 and a draft of random weights for it."""
    folder = tmp_path_factory.mktemp("parity")
    verifier = toy.write_verifier(folder / "verifier")
    algorithm = algorithms.load("eagle3")
    weights = load_weights(verifier)
    config = algorithm.Config(speculative_tokens=K, draft_vocab_size=8)
    torch.manual_seed(0)
    draft = algorithm.build(config, weights, toy.draft_vocabulary(8), AUX)
    content, tensors = algorithm.export(draft)
    write_checkpoint(folder / "draft", content, tensors, "models/toy")
    return verifier, folder / "draft"


def test_states_are_the_residual_stream_before_the_final_norm(checkpoint):
    from transformers import AutoModelForCausalLM

    verifier, _ = checkpoint
    token_ids = [5, 9, 200, 31]
    states_SAH = States(verifier, AUX, torch.float32)(token_ids)
    model = AutoModelForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    with torch.no_grad():
        out = model(torch.tensor([token_ids]), output_hidden_states=True)
        logits = model.lm_head(model.model.norm(states_SAH[:, -1]))
    assert states_SAH.shape == (4, 3, 64)
    torch.testing.assert_close(states_SAH[:, 0], out.hidden_states[1][0])
    torch.testing.assert_close(states_SAH[:, 1], out.hidden_states[3][0])
    torch.testing.assert_close(logits, out.logits[0])  # id 6 of 6 layers: the norm is still to come


def test_the_prediction_equals_drafting_one_step_at_a_time(checkpoint):
    verifier, folder = checkpoint
    algorithm, draft, content = load_draft(folder, verifier, torch.float32)
    states = States(verifier, algorithm.aux_layers(content), torch.float32)
    vocabulary = toy.draft_vocabulary(8).tolist()
    generator = torch.Generator().manual_seed(1)
    rows, expected = [], []
    for number in range(4):
        # Replies from the draft's own small vocabulary, so that some drafts are right.
        picks = torch.randint(8, (20,), generator=generator)
        prompt, reply = [1, 2, 3, number], [vocabulary[i] for i in picks]
        token_ids = prompt + reply
        states_SAH, newest, accepted = states(token_ids), PROMPT, []
        while newest < len(token_ids) - 1:
            drafted = draft_steps(draft, torch.tensor(token_ids[: newest + 1]), states_SAH[:newest], K).token_ids_K
            right = 0
            while right < K and newest + 1 + right < len(token_ids) and drafted[right] == token_ids[newest + 1 + right]:
                right += 1
            accepted.append(right)
            newest += right + 1
        rows.append({"prompt_token_ids": prompt, "token_ids": reply})
        expected.append(accepted)
    predicted, draft_tokens = predict(rows, folder, verifier, torch.float32)
    assert draft_tokens == K
    assert predicted == expected
    assert sum(map(sum, expected)) > 0, "the case says nothing if no draft is right"


def test_the_draft_is_restored_in_the_served_dtype(checkpoint):
    verifier, folder = checkpoint
    _, draft, content = load_draft(folder, verifier, torch.bfloat16)
    assert {parameter.dtype for parameter in draft.parameters()} == {torch.bfloat16}
    assert content == json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(("changes", "said"), [({"hidden_size": 128}, "width 64"), ({"vocab_size": 400}, "vocabulary")])
def test_a_draft_of_another_verifier_is_refused(checkpoint, tmp_path, changes, said):
    _, folder = checkpoint
    other = toy.write_verifier(tmp_path / "other", **changes)
    with pytest.raises(UserError, match=rf"made for a verifier of {said}.* Fix: give the verifier"):
        load_draft(folder, other, torch.float32)
