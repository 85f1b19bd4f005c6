"""The declared checkpoint format against what is exported, and each trap against the rule that names it."""

import itertools

import pytest
import torch

import algorithms
from tests import toy
from tests.algorithms import checkpoints
from tests.algorithms.checkpoints import with_keys, with_layer, with_tensor, without

MASK = 300
NAMES = ("causal", "sliding_window", "layers", "draft_vocab_size")
COMBINATIONS = [
    dict(zip(NAMES, values, strict=True))
    for values in itertools.product((False, True), (None, 5), (1, 2), (96, toy.VOCABULARY))
]


def random_draft(verifier, **settings):
    return toy.random_draft(verifier, algorithm="dflash", **{"mask_token_id": MASK, "block_size": 4} | settings)


def test_every_combination_of_settings_exports_exactly_the_declared_tensors_and_keys(verifier):
    for settings in COMBINATIONS:
        draft = random_draft(verifier, **settings)
        checkpoints.check_tensors("dflash", draft, settings)
        checkpoints.check_keys("dflash", draft)


def test_the_causality_of_the_blocks_is_always_written(verifier):
    for causal in (False, True):
        content, _ = algorithms.load("dflash").export(random_draft(verifier, causal=causal))
        assert content["sliding_window_non_causal"] is not causal


def test_a_checkpoint_that_leaves_out_what_it_may_is_restored_with_the_servers_defaults(verifier):
    keys = ("sliding_window_non_causal", "sample_from_anchor", "target_hidden_size", "block_size")
    draft = random_draft(verifier, draft_vocab_size=toy.VOCABULARY)
    again = checkpoints.restored_without("dflash", draft, verifier, keys)
    assert not again.shape.causal


TRAPS = {
    "algorithm-keys": [
        without("sliding_window_non_causal"),
        without("mask_token_id"),
        without("aux_hidden_state_layer_ids"),
        with_keys(sample_from_anchor=True),
        with_keys(norm_before_fc=True),
    ],
    "draft-architecture": [with_layer(model_type="llama"), with_layer(is_causal=True), with_layer(attention_bias=True)],
    "layer-kinds": [with_layer(layer_types=["full_attention", "sliding_attention"], sliding_window=8)],
    "mask-token": [with_keys(mask_token_id=toy.VOCABULARY)],
    "block-size": [with_keys(block_size=8), with_keys(block_size=3)],
    "missing-tensors": [
        without("hidden_norm.weight"),
        without("layers.1.self_attn.k_norm.weight"),
        without("lm_head.weight"),
    ],
    "unexpected-tensors": [with_tensor("mask_hidden", torch.ones(1, 1, 192))],
}


@pytest.mark.parametrize(("rule", "change"), [(rule, change) for rule in TRAPS for change in TRAPS[rule]])
def test_each_trap_is_named(verifier, rule, change):
    assert rule in checkpoints.faults("dflash", random_draft(verifier, layers=2), change)


def test_an_exported_draft_has_no_fault(verifier):
    for settings in COMBINATIONS:
        assert not checkpoints.faults("dflash", random_draft(verifier, **settings)), settings


def test_a_causal_block_may_serve_fewer_tokens(verifier):
    draft = random_draft(verifier, causal=True)
    assert "block-size" not in checkpoints.faults("dflash", draft, with_keys(block_size=8))
