"""Rotary positions against transformers' own tables, near and far, for each kind of scaling a verifier may bring."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from algorithms.layers import Rotary, rotary_frequencies

HEAD_DIM = 32
KINDS = [
    {"rope_type": "default", "rope_theta": 10000.0},
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
]  # fmt: skip


@pytest.mark.parametrize("rope", KINDS, ids=lambda rope: f"{rope['rope_type']}-{rope['rope_theta']:.0f}")
def test_a_turned_query_equals_transformers_at_positions_near_and_far(rope):
    positions = torch.tensor([0, 1, 100, 5000])
    query = torch.randn(4, 2, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    config = LlamaConfig(head_dim=HEAD_DIM, rope_parameters=rope, max_position_embeddings=8192)
    tables = LlamaRotaryEmbedding(config)(query, positions[None])
    want, _ = apply_rotary_pos_emb(query.transpose(0, 1)[None], query.transpose(0, 1)[None], *tables)
    rotary = Rotary(rope, HEAD_DIM)
    got = rotary.rotate(query, rotary.angles(positions))
    torch.testing.assert_close(got, want[0].transpose(0, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"rope_type": "spiral", "rope_theta": 1e4}, "rope_type = 'spiral'"),
        ({"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}, "rope_type = 'yarn'"),
        ({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}, "partial_rotary_factor = 0.25"),
    ],
)
def test_an_unknown_kind_is_an_error_and_never_the_default(rope, said):
    with pytest.raises(ValueError, match=said):
        rotary_frequencies(rope, HEAD_DIM)
