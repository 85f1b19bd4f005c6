"""Vocabulary, rotary frequencies, layout and the attention shape against brute force."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import algorithms
from algorithms.attention import Layout, visible
from algorithms.layers import Rotary, plain_rope, rope_of, rotary_frequencies
from algorithms.vocabulary import choose, from_offsets, target_mask, to_offsets


@given(st.sets(st.integers(0, 511), min_size=1))
def test_offsets_and_mask_map_back_to_exactly_the_kept_tokens(kept):
    ids = torch.tensor(sorted(kept))
    assert from_offsets(to_offsets(ids)).tolist() == sorted(kept)
    assert target_mask(ids, 512).nonzero().squeeze(1).tolist() == sorted(kept)


def test_offsets_are_offsets_and_not_ids():
    assert to_offsets(torch.tensor([3, 7, 8, 500])).tolist() == [3, 6, 6, 497]


def test_the_most_frequent_tokens_are_kept_with_the_special_ones_and_the_lowest_unused_fill_up():
    counts = torch.tensor([0, 5, 0, 9, 1, 0, 0, 0])
    assert choose(counts, 3).tolist() == [1, 3, 4]
    assert choose(counts, 3, always=[7]).tolist() == [1, 3, 7]
    assert choose(counts, 6, always=[7]).tolist() == [0, 1, 2, 3, 4, 7]
    assert choose(counts, 8).tolist() == list(range(8))


@pytest.mark.parametrize(("size", "always"), [(0, []), (9, []), (1, [2, 3]), (3, [8])])
def test_a_vocabulary_that_cannot_be_is_refused(size, always):
    with pytest.raises(ValueError, match="draft"):
        choose(torch.ones(8, dtype=torch.int64), size, always)


ROPES = {
    "default": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 2048},
    "yarn_attention_factor": {
        "rope_type": "yarn", "rope_theta": 15e4, "factor": 32.0, "original_max_position_embeddings": 2048,
        "attention_factor": 1.2, "truncate": False,
    },
    "yarn_scales": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 2048,
        "mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 24, "beta_slow": 2,
    },
    "yarn_small_base": {
        "rope_type": "yarn", "rope_theta": 10.0, "factor": 8.0, "original_max_position_embeddings": 2048,
        "beta_fast": 200,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ROPES)
def test_cosines_and_sines_equal_those_of_transformers_beyond_the_original_length_too(name):
    rope, positions = ROPES[name], torch.tensor([0, 1, 1000, 5000, 16000])
    config = LlamaConfig(hidden_size=128, num_attention_heads=2, rope_parameters=rope, max_position_embeddings=131072)
    table = LlamaRotaryEmbedding(config)
    want = [part[0, :, :32] for part in table(torch.zeros(1, 1, 1), positions[None])]
    got = [part[:, 0] for part in Rotary(rope, 64).angles(positions)]
    # transformers divides the frequencies of linear scaling, the server the positions: they round apart at 16000.
    torch.testing.assert_close(got, want, rtol=0, atol=1e-3 if name == "linear" else 1e-6)


def test_a_part_of_each_head_is_turned_as_a_smaller_head_and_the_rest_is_kept():
    generator = torch.Generator().manual_seed(0)
    heads, positions = torch.randn(3, 2, 64, generator=generator), torch.tensor([0, 1, 1000])
    rope = {"rope_type": "default", "rope_theta": 1e4}
    part, whole = Rotary(rope | {"partial_rotary_factor": 0.25}, 64), Rotary(rope, 16)
    turned = part.rotate(heads, part.angles(positions))
    assert torch.equal(turned[..., 16:], heads[..., 16:])
    assert torch.equal(turned[..., :16], whole.rotate(heads[..., :16], whole.angles(positions)))


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"rope_type": "longrope", "rope_theta": 1e4}, "rope_type = 'longrope'"),
        ({"rope_theta": 1e4, "mrope_section": [4, 6, 6]}, r"mrope_section = \[4, 6, 6\]"),
        ({"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e6}}, "no rope_theta"),
    ],
)
def test_an_unknown_kind_of_rope_is_an_error_and_never_the_default(rope, said):
    with pytest.raises(ValueError, match=f"{said}.* Fix: "):
        rotary_frequencies(rope, 64)


def test_a_draft_of_a_verifier_that_reads_images_turns_text_plainly():
    keys = {"mrope_section": [11, 11, 10], "mrope_interleaved": True}
    plain = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    assert plain_rope(plain | keys) == plain_rope(plain | keys | {"rope_type": "mrope"}) == plain


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"rope_theta": 1e6, "rope_scaling": None}, {"rope_type": "default", "rope_theta": 1e6}),
        (
            {"rope_theta": 5e6, "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20]}},
            {"rope_type": "default", "rope_theta": 5e6},
        ),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
         {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_theta": 1.0},
         {"rope_type": "default", "rope_theta": 1e6}),
    ],
    ids=["theta alone", "axes of images", "an older kind", "new beside old"],
)  # fmt: skip
def test_a_draft_takes_over_the_rope_of_a_config_with_older_keys(config, wanted):
    assert rope_of(config) == wanted


def test_turned_heads_keep_their_length_and_their_product_depends_on_distance_only():
    rotary = Rotary({"rope_type": "default", "rope_theta": 100.0}, 16)
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 1, 16, generator=generator).expand(2, 1, 16) for _ in range(2))
    a, b = (rotary.rotate(x, rotary.angles(torch.tensor(p))) for x, p in ((query, [3, 40]), (key, [1, 38])))
    torch.testing.assert_close(a.norm(dim=-1), query.norm(dim=-1))
    products = (a * b).sum(-1).squeeze(1)
    torch.testing.assert_close(products[0], products[1], rtol=1e-4, atol=1e-4)


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.integers(0, 3),
    st.sampled_from([None, 1, 2, 4]),
    st.randoms(),
)
@settings(deadline=None, max_examples=60)
def test_the_visible_keys_equal_brute_force(lengths, step, window, random):
    document = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])
    context = Layout.of(document)
    rows = sorted(random.sample(range(len(document)), random.randint(1, len(document))))
    queries = context.take(torch.tensor(rows))
    seen = queries.unpad(visible(context, queries, step, window))
    for number, row in enumerate(rows):
        place = row - sum(lengths[: int(document[row])])
        want = [key <= place and (window is None or place + step - key < window) for key in range(max(lengths))]
        assert seen[number].tolist() == want
    values = torch.randn(len(rows), 3)
    assert torch.equal(queries.unpad(queries.pad(values)), values)


def test_names_are_looked_up_with_a_suggestion():
    assert algorithms.load("eagle3").name == "eagle3"
    with pytest.raises(algorithms.UnknownAlgorithm, match="Fix: eagle3"):
        algorithms.config_class("eagle-3", "reproduction.yaml: algorithms")
