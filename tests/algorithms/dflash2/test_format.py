"""The declared checkpoint format against what is exported, and each trap against the rule that names it."""

import itertools

import pytest
import torch

from tests import toy
from tests.algorithms import checkpoints
from tests.algorithms.checkpoints import with_keys, with_tensor, without

NAMES = ("causal", "sliding_window", "layers", "conv_kernel_size", "conv_group_size")
COMBINATIONS = [
    dict(zip(NAMES, values, strict=True))
    for values in itertools.product((False, True), (None, 5), (1, 2), (1, 3), (16, 64))
]


def random_draft(verifier, **settings):
    plain = {"mask_token_id": 300, "block_size": 4, "draft_vocab_size": toy.VOCABULARY, "selector_rank": 8}
    return toy.random_draft(verifier, algorithm="dflash2", **plain | settings)


def test_every_combination_of_settings_exports_exactly_the_declared_tensors_and_keys(verifier):
    for settings in COMBINATIONS:
        draft = random_draft(verifier, **settings)
        checkpoints.check_tensors("dflash2", draft, settings)
        checkpoints.check_keys("dflash2", draft)


def test_a_checkpoint_that_leaves_out_what_it_may_is_restored_with_the_servers_defaults(verifier):
    keys = ("sliding_window_non_causal", "sample_from_anchor", "target_hidden_size", "block_size")
    draft = random_draft(verifier)
    checkpoints.restored_without("dflash2", draft, verifier, keys)


TRAPS = {
    "algorithm-keys": [
        without("conv_kernel_size"),
        without("selector_top_k"),
        without("sliding_window_non_causal"),
        with_keys(markov_rank=4),
    ],
    "conv-groups": [with_keys(conv_group_size=24)],
    "conv-taps": [with_keys(conv_kernel_size=5)],
    "candidate-count": [with_keys(selector_top_k=321)],
    "full-vocabulary": [with_keys(draft_vocab_size=96)],
    "block-size": [with_keys(block_size=8)],
    "missing-tensors": [
        without("layers.1.mlp_conv.base_kernel"),
        without("layers.0.attention_conv.kernel_projection.weight"),
        without("candidate_selector.successor_codebook"),
    ],
    "unexpected-tensors": [with_tensor("d2t", torch.arange(toy.VOCABULARY))],
    "tensor-shapes": [with_keys(conv_group_size=32), with_keys(selector_rank=4)],
}


@pytest.mark.parametrize(("rule", "change"), [(rule, change) for rule in TRAPS for change in TRAPS[rule]])
def test_each_trap_is_named(verifier, rule, change):
    assert rule in checkpoints.faults("dflash2", random_draft(verifier, layers=2), change)


def test_an_exported_draft_has_no_fault(verifier):
    for settings in COMBINATIONS:
        assert not checkpoints.faults("dflash2", random_draft(verifier, **settings)), settings
