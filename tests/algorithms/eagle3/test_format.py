"""The declared checkpoint format against what is exported, and each setting against what it is for."""

import itertools

import pytest
import torch
from pydantic import ValidationError

import algorithms
from algorithms.eagle3.config import Config
from algorithms.eagle3.drafting import draft_steps
from algorithms.eagle3.export import FLAGS
from algorithms.eagle3.format import FORMAT
from tests import toy
from tests.algorithms import checkpoints

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


def test_every_combination_of_settings_exports_exactly_the_declared_tensors(verifier):
    for settings in COMBINATIONS:
        checkpoints.check_tensors("eagle3", toy.random_draft(verifier, **settings), settings)


def test_every_combination_of_settings_exports_keys_that_the_server_knows(verifier):
    for settings in COMBINATIONS:
        checkpoints.check_keys("eagle3", toy.random_draft(verifier, **settings))


def test_a_draft_of_another_width_than_its_verifier_needs_its_own_embedding(verifier):
    content = EAGLE3.export(toy.random_draft(verifier))[0]
    content |= {"target_hidden_size": 128}
    assert FORMAT.required_tensors(content)["embed_tokens.weight"] == (toy.VOCABULARY, 64)
    assert FORMAT.required_tensors(content)["fc.weight"] == (64, 3 * 128)


def test_a_checkpoint_that_leaves_out_what_it_may_is_restored_with_the_servers_defaults(verifier):
    keys = ("norm_before_fc", "fc_norm", "norm_output", "target_hidden_size")
    draft = toy.random_draft(verifier, draft_vocab_size=toy.VOCABULARY)
    checkpoints.restored_without("eagle3", draft, verifier, keys)


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
