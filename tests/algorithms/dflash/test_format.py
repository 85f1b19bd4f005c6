"""The declared checkpoint format against what is exported, and each trap against the rule that names it."""

import itertools

import pytest
import torch

import algorithms
from algorithms.dflash.format import FORMAT, Keys
from harness.checkpoint.lint import checkpoint_faults
from harness.checkpoint.schema import DraftConfig, algorithm_keys
from harness.verifiers.weights import load_weights
from tests import toy

DFLASH = algorithms.load("dflash")
MASK = 300
NAMES = ("causal", "sliding_window", "layers", "draft_vocab_size")
COMBINATIONS = [
    dict(zip(NAMES, values, strict=True))
    for values in itertools.product((False, True), (None, 5), (1, 2), (96, toy.VOCABULARY))
]


def random_draft(verifier, **settings):
    return toy.random_draft(verifier, algorithm="dflash", **{"mask_token_id": MASK, "block_size": 4} | settings)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    return load_weights(toy.write_verifier(tmp_path_factory.mktemp("verifier")))


def test_every_combination_of_settings_exports_exactly_the_declared_tensors_and_keys(verifier):
    for settings in COMBINATIONS:
        content, tensors = DFLASH.export(random_draft(verifier, **settings))
        required, optional = FORMAT.required_tensors(content), FORMAT.optional_tensors(content)
        assert required.keys() <= tensors.keys() <= required.keys() | optional.keys(), settings
        assert all(tuple(tensor.shape) == (required | optional)[name] for name, tensor in tensors.items()), settings
        Keys.model_validate(algorithm_keys(content))
        section = content["speculators_config"] | {"verifier": {"name_or_path": "models/toy"}}
        DraftConfig.model_validate(content | {"speculators_config": section})


def test_the_causality_of_the_blocks_is_always_written(verifier):
    for causal in (False, True):
        content, _ = DFLASH.export(random_draft(verifier, causal=causal))
        assert content["sliding_window_non_causal"] is not causal


def test_a_checkpoint_that_leaves_out_what_it_may_is_restored_with_the_servers_defaults(verifier):
    draft = random_draft(verifier, draft_vocab_size=toy.VOCABULARY)
    content, tensors = DFLASH.export(draft)
    for key in ("sliding_window_non_causal", "sample_from_anchor", "target_hidden_size", "block_size"):
        del content[key]
    content["draft_vocab_size"] = None
    content["transformer_layer_config"] = dict(content["transformer_layer_config"])
    del content["transformer_layer_config"]["layer_types"], tensors["lm_head.weight"]
    assert FORMAT.required_tensors(content).keys() <= tensors.keys()
    again = DFLASH.restore(content, tensors, verifier)
    tokens, states = torch.arange(9), torch.randn(8, 3, 64)
    drafts = [DFLASH.propose(draft, tokens, states, 3) for draft in (draft, again)]
    assert torch.equal(*drafts) and not again.shape.causal


def faults(verifier, change, **settings) -> dict[str, str]:
    """Faults by rule once `change` was applied to (content, tensors)."""
    content, tensors = DFLASH.export(random_draft(verifier, **settings))
    content["speculators_config"] |= {"verifier": {"name_or_path": "models/toy"}}
    content["transformer_layer_config"] = dict(content["transformer_layer_config"])
    change(content, tensors)
    return {found.rule: found.found for found in checkpoint_faults(content, tensors)}


def with_layer(**keys):
    return lambda content, _: content["transformer_layer_config"].update(keys)


def with_keys(**keys):
    return lambda content, _: content.update(keys)


TRAPS = {
    "algorithm-keys": [
        lambda content, _: content.pop("sliding_window_non_causal"),
        lambda content, _: content.pop("mask_token_id"),
        lambda content, _: content.pop("aux_hidden_state_layer_ids"),
        with_keys(sample_from_anchor=True),
        with_keys(norm_before_fc=True),
    ],
    "draft-architecture": [with_layer(model_type="llama"), with_layer(is_causal=True), with_layer(attention_bias=True)],
    "layer-kinds": [with_layer(layer_types=["full_attention", "sliding_attention"], sliding_window=8)],
    "mask-token": [with_keys(mask_token_id=toy.VOCABULARY)],
    "block-size": [with_keys(block_size=8), with_keys(block_size=3)],
    "missing-tensors": [
        lambda _, tensors: tensors.pop("hidden_norm.weight"),
        lambda _, tensors: tensors.pop("layers.1.self_attn.k_norm.weight"),
        lambda _, tensors: tensors.pop("lm_head.weight"),
    ],
    "unexpected-tensors": [lambda _, tensors: tensors.update(mask_hidden=torch.ones(1, 1, 192))],
}


@pytest.mark.parametrize(("rule", "change"), [(rule, change) for rule in TRAPS for change in TRAPS[rule]])
def test_each_trap_is_named(verifier, rule, change):
    assert rule in faults(verifier, change, layers=2)


def test_an_exported_draft_has_no_fault(verifier):
    for settings in COMBINATIONS:
        assert not faults(verifier, lambda *_: None, **settings), settings


def test_a_causal_block_may_serve_fewer_tokens(verifier):
    assert "block-size" not in faults(verifier, with_keys(block_size=8), causal=True)
