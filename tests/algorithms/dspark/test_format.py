"""The declared checkpoint format against what is exported, and each trap against the rule that names it."""

import itertools

import pytest
import torch

import algorithms
from algorithms.dspark.format import FORMAT, Keys
from harness.checkpoint.lint import checkpoint_faults
from harness.checkpoint.schema import DraftConfig, algorithm_keys
from harness.verifiers.weights import load_weights
from tests import toy

DSPARK = algorithms.load("dspark")
MASK = 300
NAMES = ("confidence_head", "confidence_head_with_markov", "causal", "sliding_window", "layers", "draft_vocab_size")
COMBINATIONS = [
    {"sample_from_anchor": anchor, "block_size": 3 if anchor else 4} | dict(zip(NAMES, values, strict=True))
    for anchor in (True, False)
    for values in itertools.product((False, True), (False, True), (None, False, True), (None, 5), (1, 2), (96, 320))
]


def random_draft(verifier, **settings):
    return toy.random_draft(verifier, algorithm="dspark", **{"mask_token_id": MASK, "block_size": 3} | settings)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    return load_weights(toy.write_verifier(tmp_path_factory.mktemp("verifier")))


def test_combinations_of_settings_export_exactly_the_declared_tensors_and_keys(verifier):
    for settings in COMBINATIONS:
        content, tensors = DSPARK.export(random_draft(verifier, **settings))
        required, optional = FORMAT.required_tensors(content), FORMAT.optional_tensors(content)
        assert required.keys() <= tensors.keys() <= required.keys() | optional.keys(), settings
        assert all(tuple(tensor.shape) == (required | optional)[name] for name, tensor in tensors.items()), settings
        Keys.model_validate(algorithm_keys(content))
        section = content["speculators_config"] | {"verifier": {"name_or_path": "models/toy"}}
        DraftConfig.model_validate(content | {"speculators_config": section})


def test_an_exported_draft_has_no_fault(verifier):
    for settings in COMBINATIONS[::3]:
        assert not faults(verifier, lambda *_: None, **settings), settings


def test_a_checkpoint_that_leaves_out_what_it_may_is_restored_with_the_servers_defaults(verifier):
    draft = random_draft(verifier, draft_vocab_size=toy.VOCABULARY)
    content, tensors = DSPARK.export(draft)
    for key in ("markov_head_type", "target_hidden_size", "sliding_window_non_causal"):
        del content[key]
    content["draft_vocab_size"] = None
    content["transformer_layer_config"] = dict(content["transformer_layer_config"])
    del content["transformer_layer_config"]["layer_types"], tensors["lm_head.weight"]
    assert FORMAT.required_tensors(content).keys() <= tensors.keys()
    again = DSPARK.restore(content, tensors, verifier)
    tokens, states = torch.arange(9), torch.randn(8, 3, 64)
    drafts = [DSPARK.propose(draft, tokens, states, 3) for draft in (draft, again)]
    assert torch.equal(*drafts) and not again.shape.causal


def faults(verifier, change, **settings) -> dict[str, str]:
    """Faults by rule once `change` was applied to (content, tensors)."""
    content, tensors = DSPARK.export(random_draft(verifier, **settings))
    content["speculators_config"] |= {"verifier": {"name_or_path": "models/toy"}}
    content["transformer_layer_config"] = dict(content["transformer_layer_config"])
    change(content, tensors)
    return {found.rule: found.found for found in checkpoint_faults(content, tensors)}


def with_layer(**keys):
    return lambda content, _: content["transformer_layer_config"].update(keys)


def with_keys(**keys):
    return lambda content, _: content.update(keys)


def without(name):
    return lambda content, tensors: content.pop(name, None) if name in content else tensors.pop(name)


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
        lambda _, tensors: tensors.update({"markov_head.gate_proj.weight": torch.ones(64, 128)}),
        with_keys(enable_confidence_head=False),
    ],
    "tensor-shapes": [
        with_keys(confidence_head_with_markov=False),
        # indexed by draft ids
        lambda _, tensors: tensors.update({"markov_head.markov_w1.weight": torch.ones(96, 64)}),
    ],
}


@pytest.mark.parametrize(("rule", "change"), [(rule, change) for rule in TRAPS for change in TRAPS[rule]])
def test_each_trap_is_named(verifier, rule, change):
    assert rule in faults(verifier, change, layers=2)


def test_a_causal_block_may_serve_fewer_tokens(verifier):
    assert "block-size" not in faults(verifier, with_keys(block_size=8), causal=True)


def test_the_trainers_flag_must_say_what_the_server_does(verifier):
    flipped = with_keys(sliding_window_non_causal=True)
    assert "blocks are causal" in faults(verifier, flipped, sliding_window=5)["block-causality"]
    # Layers without a window were trained bidirectional whatever the flag says.
    assert "block-causality" not in faults(verifier, with_keys(sliding_window_non_causal=False))
