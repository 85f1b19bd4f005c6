"""The declared checkpoint format against what is exported, and each trap against the rule that names it."""

import itertools

import pytest
import torch

import algorithms
from algorithms.dflash2.format import FORMAT, Keys
from harness.checkpoint.lint import checkpoint_faults
from harness.checkpoint.schema import DraftConfig, algorithm_keys
from harness.verifiers.weights import load_weights
from tests import toy

DFLASH2 = algorithms.load("dflash2")
NAMES = ("causal", "sliding_window", "layers", "conv_kernel_size", "conv_group_size")
COMBINATIONS = [
    dict(zip(NAMES, values, strict=True))
    for values in itertools.product((False, True), (None, 5), (1, 2), (1, 3), (16, 64))
]


def random_draft(verifier, **settings):
    plain = {"mask_token_id": 300, "block_size": 4, "draft_vocab_size": toy.VOCABULARY, "selector_rank": 8}
    return toy.random_draft(verifier, algorithm="dflash2", **plain | settings)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    return load_weights(toy.write_verifier(tmp_path_factory.mktemp("verifier")))


def test_every_combination_of_settings_exports_exactly_the_declared_tensors_and_keys(verifier):
    for settings in COMBINATIONS:
        content, tensors = DFLASH2.export(random_draft(verifier, **settings))
        required, optional = FORMAT.required_tensors(content), FORMAT.optional_tensors(content)
        assert required.keys() <= tensors.keys() <= required.keys() | optional.keys(), settings
        assert all(tuple(tensor.shape) == (required | optional)[name] for name, tensor in tensors.items()), settings
        Keys.model_validate(algorithm_keys(content))
        section = content["speculators_config"] | {"verifier": {"name_or_path": "models/toy"}}
        DraftConfig.model_validate(content | {"speculators_config": section})


def test_a_checkpoint_that_leaves_out_what_it_may_is_restored_with_the_servers_defaults(verifier):
    draft = random_draft(verifier)
    content, tensors = DFLASH2.export(draft)
    for key in ("sliding_window_non_causal", "sample_from_anchor", "target_hidden_size", "block_size"):
        del content[key]
    content["draft_vocab_size"] = None
    del tensors["lm_head.weight"]
    assert FORMAT.required_tensors(content).keys() <= tensors.keys()
    tokens, states = torch.arange(9), torch.randn(8, 3, 64)
    restored = DFLASH2.restore(content, tensors, verifier)
    assert torch.equal(*(DFLASH2.propose(d, tokens, states, 3) for d in (draft, restored)))


def faults(verifier, change, **settings) -> set[str]:
    """Rules that find a fault once `change` was applied to (content, tensors)."""
    content, tensors = DFLASH2.export(random_draft(verifier, **settings))
    content["speculators_config"] |= {"verifier": {"name_or_path": "models/toy"}}
    content["transformer_layer_config"] = dict(content["transformer_layer_config"])
    change(content, tensors)
    return {found.rule for found in checkpoint_faults(content, tensors)}


def with_keys(**keys):
    return lambda content, _: content.update(keys)


TRAPS = {
    "algorithm-keys": [
        *(lambda content, _, key=key: content.pop(key) for key in ("conv_kernel_size", "selector_top_k")),
        lambda content, _: content.pop("sliding_window_non_causal"),
        with_keys(markov_rank=4),
    ],
    "conv-groups": [with_keys(conv_group_size=24)],
    "conv-taps": [with_keys(conv_kernel_size=5)],
    "candidate-count": [with_keys(selector_top_k=321)],
    "full-vocabulary": [with_keys(draft_vocab_size=96)],
    "block-size": [with_keys(block_size=8)],
    "missing-tensors": [
        lambda _, tensors: tensors.pop("layers.1.mlp_conv.base_kernel"),
        lambda _, tensors: tensors.pop("layers.0.attention_conv.kernel_projection.weight"),
        lambda _, tensors: tensors.pop("candidate_selector.successor_codebook"),
    ],
    "unexpected-tensors": [lambda _, tensors: tensors.update(d2t=torch.arange(toy.VOCABULARY))],
    "tensor-shapes": [with_keys(conv_group_size=32), with_keys(selector_rank=4)],
}


@pytest.mark.parametrize(("rule", "change"), [(rule, change) for rule in TRAPS for change in TRAPS[rule]])
def test_each_trap_is_named(verifier, rule, change):
    assert rule in faults(verifier, change, layers=2)


def test_an_exported_draft_has_no_fault(verifier):
    for settings in COMBINATIONS:
        assert not faults(verifier, lambda *_: None, **settings), settings
