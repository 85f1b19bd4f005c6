"""The declared checkpoint format against what is exported, and each trap against the rule that names it."""

import itertools

import pytest
import torch

from tests import toy
from tests.algorithms import checkpoints
from tests.algorithms.checkpoints import with_keys, with_layer, with_tensor, without

MASK = 300
NAMES = ("confidence_head", "confidence_head_with_markov", "causal", "sliding_window", "layers", "draft_vocab_size")
COMBINATIONS = [
    {"sample_from_anchor": anchor, "block_size": 3 if anchor else 4} | dict(zip(NAMES, values, strict=True))
    for anchor in (True, False)
    for values in itertools.product((False, True), (False, True), (None, False, True), (None, 5), (1, 2), (96, 320))
]


def random_draft(verifier, **settings):
    return toy.random_draft(verifier, algorithm="dspark", **{"mask_token_id": MASK, "block_size": 3} | settings)


def test_combinations_of_settings_export_exactly_the_declared_tensors_and_keys(verifier):
    for settings in COMBINATIONS:
        draft = random_draft(verifier, **settings)
        checkpoints.check_tensors("dspark", draft, settings)
        checkpoints.check_keys("dspark", draft)


def test_an_exported_draft_has_no_fault(verifier):
    for settings in COMBINATIONS[::3]:
        assert not checkpoints.faults("dspark", random_draft(verifier, **settings)), settings


def test_a_checkpoint_that_leaves_out_what_it_may_is_restored_with_the_servers_defaults(verifier):
    keys = ("markov_head_type", "target_hidden_size", "sliding_window_non_causal")
    draft = random_draft(verifier, draft_vocab_size=toy.VOCABULARY)
    again = checkpoints.restored_without("dspark", draft, verifier, keys)
    assert not again.shape.causal


TRAPS = {
    "algorithm-keys": [
        without("sample_from_anchor"),
        without("markov_rank"),
        without("enable_confidence_head"),
        without("confidence_head_with_markov"),
        without("mask_token_id"),
        without("aux_hidden_state_layer_ids"),
        with_keys(markov_head_type="gated"),
        with_keys(markov_head_type="rnn"),
        with_keys(markov_rank=0),
        with_keys(selector_rank=4),
    ],
    "draft-architecture": [with_layer(model_type="llama"), with_layer(is_causal=True), with_layer(attention_bias=True)],
    "layer-kinds": [with_layer(layer_types=["full_attention", "sliding_attention"], sliding_window=8)],
    "mask-token": [with_keys(mask_token_id=toy.VOCABULARY)],
    "block-size": [with_keys(block_size=4), with_keys(block_size=2), with_keys(sample_from_anchor=False)],
    "block-causality": [
        with_layer(layer_types=["sliding_attention"] * 2, sliding_window=8),
        with_layer(dflash_config={"causal": False, "use_swa": True}),
    ],
    "missing-tensors": [
        without("markov_head.markov_w1.weight"),
        without("confidence_head.proj.bias"),
        without("hidden_norm.weight"),
        without("lm_head.weight"),
        without("d2t"),
    ],
    "unexpected-tensors": [
        with_tensor("markov_head.gate_proj.weight", torch.ones(64, 128)),
        with_keys(enable_confidence_head=False),
    ],
    "tensor-shapes": [
        with_keys(confidence_head_with_markov=False),
        # indexed by draft ids
        with_tensor("markov_head.markov_w1.weight", torch.ones(96, 64)),
    ],
}


@pytest.mark.parametrize(("rule", "change"), [(rule, change) for rule in TRAPS for change in TRAPS[rule]])
def test_each_trap_is_named(verifier, rule, change):
    assert rule in checkpoints.faults("dspark", random_draft(verifier, layers=2), change)


def test_a_causal_block_may_serve_fewer_tokens(verifier):
    draft = random_draft(verifier, causal=True)
    assert "block-size" not in checkpoints.faults("dspark", draft, with_keys(block_size=8))


def test_the_trainers_flag_must_say_what_the_server_does(verifier):
    flipped, windowed = with_keys(sliding_window_non_causal=True), random_draft(verifier, sliding_window=5)
    assert "blocks are causal" in checkpoints.faults("dspark", windowed, flipped)["block-causality"]
    # Layers without a window were trained bidirectional whatever the flag says.
    unflagged = with_keys(sliding_window_non_causal=False)
    assert "block-causality" not in checkpoints.faults("dspark", random_draft(verifier), unflagged)
