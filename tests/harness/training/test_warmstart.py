"""Going on from a checkpoint: the same network goes on, any other is refused by name."""

import pytest
import torch

import algorithms
from harness.errors import UserError
from harness.training.warmstart import Start
from harness.verifiers.weights import load_weights
from tests import toy

EAGLE3 = algorithms.load("eagle3")


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    return load_weights(toy.write_verifier(tmp_path_factory.mktemp("verifier")))


def start_of(folder, verifier, **settings):
    draft = toy.random_draft(verifier, **settings)
    toy.write_draft(folder / "draft", draft, "models/toy", settings.get("algorithm", "eagle3"))
    return draft, Start(str(folder / "draft"), toy.VOCABULARY)


def test_a_draft_goes_on_with_every_weight_and_the_vocabulary_of_the_checkpoint(tmp_path, verifier):
    first, start = start_of(tmp_path, verifier)
    second = toy.random_draft(verifier, seed=9)
    assert not torch.equal(first.fc.weight, second.fc.weight)
    assert start.give(EAGLE3, second) == []
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    assert torch.equal(start.draft_to_target_D, first.draft_to_target_D)


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"norm_output": True}, "norm_output = True there and False here"),
        ({"layers": 2}, "layer_types"),
        ({"architecture": "qwen3"}, "model_type = 'qwen3' there and 'llama' here"),
        ({"aux_layers": (0, 2, 4)}, "eagle_aux_hidden_state_layer_ids"),
        ({"sliding_window": 8}, "layer_types"),
    ],
)
def test_a_network_that_differs_is_refused_by_the_key_that_differs(tmp_path, verifier, theirs, said):
    _, start = start_of(tmp_path, verifier, **theirs)
    with pytest.raises(UserError, match=r"init_from = .*Fix: ") as caught:
        start.give(EAGLE3, toy.random_draft(verifier))
    assert said in str(caught.value)


def test_a_relative_may_lack_what_its_algorithm_says_starts_anew_and_nothing_else(tmp_path, verifier):
    _, start = start_of(tmp_path, verifier)
    draft = toy.random_draft(verifier)
    draft.extra = torch.nn.Linear(2, 2, bias=False)
    with pytest.raises(UserError, match=r"lacks extra\.weight"):
        start.give(EAGLE3, draft)
    relative = type(EAGLE3)(**{**vars(EAGLE3), "new_tensors": ("extra.",)})
    assert start.give(relative, draft) == ["extra.weight"]


def test_p_eagle_goes_on_from_eagle3_with_a_new_mask_and_from_itself_with_its_own_embedding(tmp_path, verifier):
    kind, settings = algorithms.load("peagle"), {"mask_token_id": 300, "train_embedding": True}
    _, start = start_of(tmp_path, verifier, norm_before_residual=False)
    first = toy.random_draft(verifier, algorithm="peagle", **settings)
    assert start.give(kind, first) == ["embed_tokens.weight", "mask_hidden"]
    toy.write_draft(tmp_path / "again", first, "models/toy", "peagle")
    second = toy.random_draft(verifier, algorithm="peagle", seed=9, **settings)
    assert Start(str(tmp_path / "again"), toy.VOCABULARY).give(kind, second) == []
    assert torch.equal(first.embed_tokens.weight, second.embed_tokens.weight)


def test_fused_projections_are_refused_by_name_and_not_skipped(tmp_path, verifier):
    _, start = start_of(tmp_path, verifier)
    parts = [start.tensors.pop(f"layers.0.self_attn.{part}_proj.weight") for part in "qkv"]
    start.tensors["layers.0.self_attn.qkv_proj.weight"] = torch.cat(parts)
    with pytest.raises(UserError, match=r"has layers\.0\.self_attn\.qkv_proj\.weight, this draft has not\. Fix: "):
        start.give(EAGLE3, toy.random_draft(verifier))


def test_a_checkpoint_that_is_not_there_is_one_line(verifier):
    with pytest.raises(UserError, match="no such folder"):
        Start("results/nowhere", toy.VOCABULARY)


def test_dspark_goes_on_from_dflash_and_its_heads_start_anew(tmp_path, verifier):
    masked = {"mask_token_id": 300, "draft_vocab_size": 96}
    flash, start = start_of(tmp_path, verifier, algorithm="dflash", speculative_tokens=7, **masked)
    spark = toy.random_draft(
        verifier, seed=9, algorithm="dspark", speculative_tokens=7, sample_from_anchor=False, **masked
    )
    heads = {name: tensor.clone() for name, tensor in spark.state_dict().items() if "_head." in name}
    anew = start.give(algorithms.load("dspark"), spark)
    assert anew and set(anew) == {name for name in heads if name.startswith(("markov_head.", "confidence_head."))}
    assert torch.equal(spark.fc.weight, flash.fc.weight)
    assert all(torch.equal(spark.state_dict()[name], heads[name]) for name in anew)


def test_a_learned_embedding_is_not_dropped_in_silence(tmp_path, verifier):
    masked = {"mask_token_id": 300, "algorithm": "peagle"}
    own, start = start_of(tmp_path, verifier, train_embedding=True, **masked)
    draft = toy.random_draft(verifier, **masked)
    with pytest.raises(UserError, match=r"embed_tokens\.weight is not the verifier's.*Fix"):
        start.give(algorithms.load("peagle"), draft)
    start.tensors["embed_tokens.weight"] = verifier.embedding_VH
    assert start.give(algorithms.load("peagle"), draft) == []
    assert torch.equal(own.fc.weight, draft.fc.weight)


def test_dflash2_goes_on_from_dflash_and_drafts_what_it_did(tmp_path, verifier):
    common = {"mask_token_id": 300, "block_size": 4, "layers": 2, "draft_vocab_size": toy.VOCABULARY}
    first, start = start_of(tmp_path, verifier, algorithm="dflash", **common)
    kind = algorithms.load("dflash2")
    settings = {name: value for name, value in common.items() if name != "draft_vocab_size"}
    config = kind.Config(speculative_tokens=3, **settings)
    draft = kind.build(config, verifier, torch.arange(toy.VOCABULARY), [1, 3, 5])
    anew = start.give(kind, draft)
    assert len(anew) == 2 * 2 * 2 + 3 and "layers.1.mlp_conv.base_kernel" in anew
    tokens, states = torch.arange(9), torch.randn(8, 3, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(
        algorithms.load("dflash").propose(first, tokens, states, 3), kind.propose(draft, tokens, states, 3)
    )
