"""The declared checkpoint format against what is exported, and the traps of P-EAGLE alone."""

import itertools

import pytest
from pydantic import ValidationError

import algorithms
from algorithms.peagle.export import FLAGS
from algorithms.peagle.format import FORMAT, Keys
from harness.checkpoint.schema import algorithm_keys
from tests import toy
from tests.algorithms import checkpoints

PEAGLE = algorithms.load("peagle")
NAMES = (*FLAGS, "train_embedding", "architecture", "layers", "draft_vocab_size")
COMBINATIONS = [
    dict(zip(NAMES, values, strict=True))
    for values in itertools.product(*[(False, True)] * 3, ("llama", "qwen3"), (1, 2), (96, toy.VOCABULARY))
]


def make(verifier, **settings):
    return toy.random_draft(verifier, algorithm="peagle", mask_token_id=300, **settings)


def test_every_combination_of_settings_exports_exactly_the_declared_keys_and_tensors(verifier):
    for settings in COMBINATIONS:
        draft = make(verifier, **settings)
        checkpoints.check_tensors("peagle", draft, settings)
        checkpoints.check_keys("peagle", draft)
        assert ("embed_tokens.weight" in PEAGLE.export(draft)[1]) == settings["train_embedding"]


def test_what_the_server_would_guess_is_always_written(verifier):
    content = PEAGLE.export(make(verifier))[0]
    assert content["norm_before_residual"] is False and content["mask_token_id"] == 300
    assert "fc_norm" not in content and "norm_output" not in content
    for key in ("norm_before_residual", "mask_token_id", "eagle_aux_hidden_state_layer_ids"):
        with pytest.raises(ValidationError):
            Keys.model_validate(algorithm_keys({name: value for name, value in content.items() if name != key}))


def flat_mask(_, tensors):
    tensors["mask_hidden"] = tensors["mask_hidden"].flatten()


def test_a_checkpoint_that_leaves_out_what_it_may_is_restored_with_the_servers_defaults(verifier):
    keys = ("norm_before_residual", "norm_before_fc", "target_hidden_size")
    draft = make(verifier, draft_vocab_size=toy.VOCABULARY)
    checkpoints.restored_without("peagle", draft, verifier, keys, flat_mask)


@pytest.mark.parametrize(
    ("rule", "changes"),
    [("feature-norms", {"fc_norm": True}), ("mask-token", {"mask_token_id": toy.VOCABULARY})],
)
def test_a_planted_defect_is_found_by_its_rule_alone(verifier, rule, changes):
    content, tensors = PEAGLE.export(make(verifier))
    assert not [finding for each in FORMAT.rules for finding in each.check(content, tensors)]
    assert [each.name for each in FORMAT.rules if list(each.check(content | changes, tensors))] == [rule]
