"""The declared checkpoint format against what is exported, and each setting against what it is for."""

import itertools

import pytest
import torch
from pydantic import ValidationError

import algorithms
from algorithms.eagle3.config import Config
from algorithms.eagle3.drafting import draft_steps
from algorithms.eagle3.export import FLAGS
from algorithms.eagle3.format import FORMAT, Keys
from harness.checkpoint.schema import DraftConfig, algorithm_keys
from harness.verifiers.weights import load_weights
from tests import toy

EAGLE3 = algorithms.load("eagle3")
COMBINATIONS = [
    settings
    for values in itertools.product(*[(False, True)] * len(FLAGS), ("llama", "qwen3"), (1, 2), (96, toy.VOCABULARY))
    for settings in [dict(zip((*FLAGS, "architecture", "layers", "draft_vocab_size"), values, strict=True))]
    if not (settings["norm_before_fc"] and settings["fc_norm"])
]


def test_both_feature_norms_at_once_are_refused_because_the_server_applies_both():
    with pytest.raises(ValidationError, match=r"fc_norm = true.*Fix"):
        Config(speculative_tokens=3, norm_before_fc=True, fc_norm=True)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    return load_weights(toy.write_verifier(tmp_path_factory.mktemp("verifier")))


def test_every_combination_of_settings_exports_exactly_the_declared_tensors(verifier):
    for settings in COMBINATIONS:
        content, tensors = EAGLE3.export(toy.random_draft(verifier, **settings))
        required, optional = FORMAT.required_tensors(content), FORMAT.optional_tensors(content)
        assert required.keys() <= tensors.keys() <= required.keys() | optional.keys(), settings
        assert not required.keys() & optional.keys()
        for name, tensor in tensors.items():
            assert tuple(tensor.shape) == (required | optional)[name], (settings, name)


def test_every_combination_of_settings_exports_keys_that_the_server_knows(verifier):
    for settings in COMBINATIONS:
        content = EAGLE3.export(toy.random_draft(verifier, **settings))[0]
        Keys.model_validate(algorithm_keys(content))
        section = content["speculators_config"] | {"verifier": {"name_or_path": "models/toy"}}
        DraftConfig.model_validate(content | {"speculators_config": section})


def test_a_draft_of_another_width_than_its_verifier_needs_its_own_embedding(verifier):
    content = EAGLE3.export(toy.random_draft(verifier))[0]
    content |= {"target_hidden_size": 128}
    assert FORMAT.required_tensors(content)["embed_tokens.weight"] == (toy.VOCABULARY, 64)
    assert FORMAT.required_tensors(content)["fc.weight"] == (64, 3 * 128)


def test_a_checkpoint_that_leaves_out_what_it_may_is_restored_with_the_servers_defaults(verifier):
    draft = toy.random_draft(verifier, draft_vocab_size=toy.VOCABULARY)
    content, tensors = EAGLE3.export(draft)
    for key in ("norm_before_fc", "fc_norm", "norm_output", "target_hidden_size"):
        del content[key]
    content["draft_vocab_size"] = None
    content["transformer_layer_config"] = dict(content["transformer_layer_config"])
    del content["transformer_layer_config"]["layer_types"], tensors["lm_head.weight"]
    assert FORMAT.required_tensors(content).keys() <= tensors.keys()
    tokens, states = torch.arange(9), torch.randn(8, 3, 64)
    drafts = [EAGLE3.propose(d, tokens, states, 3) for d in (draft, EAGLE3.restore(content, tensors, verifier))]
    assert torch.equal(*drafts)


BASE = {"layers": 2, "seed": 1}
CHANGES = [
    *({flag: True} for flag in FLAGS if flag != "norm_before_residual"),
    {"norm_before_residual": False},
    {"architecture": "qwen3"},
    {"sliding_window": 3},
    {"layers": 1},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_each_setting_changes_what_is_drafted_from(verifier, change):
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(0, 256, (12,), generator=generator)
    states = torch.randn(11, 3, 64, generator=generator)
    plain = toy.random_draft(verifier, **BASE)
    changed = toy.random_draft(verifier, **BASE | change)
    # The same weights wherever both have them, so that only the setting can make a difference.
    changed.load_state_dict({n: t for n, t in plain.state_dict().items() if n in changed.state_dict()}, strict=False)
    a, b = (draft_steps(draft, tokens, states, 3).output_KH for draft in (plain, changed))
    first, last = (((a[step] - b[step]).norm() / a[step].norm()).item() for step in (0, 2))
    assert last > 1e-2
    # norm_output concerns the fed-back state only.
    assert (first > 1e-2) == ("norm_output" not in change)
