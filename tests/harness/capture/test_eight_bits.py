"""Laws of states in 8 bits: how far a number may move, and that the few huge ones do not cost the rest."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.capture import eight_bits
from harness.capture.store import Store, read_facts
from tests.harness.capture.test_store import FACTS, document, write_store


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 12), st.integers(1, 3), st.integers(1, 9), st.integers(0, 99), st.floats(-12, 12))
def test_no_number_moves_by_more_than_half_a_level(tokens, layers, width, seed, magnitude):
    given_states = normal(tokens, layers, width, seed=seed) * 10**magnitude
    packed, errors = eight_bits.pack(given_states)
    stored = eight_bits.unpack(*packed.values(), torch.float32)
    level = packed["row_scale"][..., None] * packed["channel_scale"]
    assert ((stored - given_states).abs() <= 0.5001 * level).all()
    wanted = ((stored - given_states).norm(dim=-1) / given_states.norm(dim=-1)).mean(0)
    assert errors == pytest.approx(wanted.tolist(), abs=1e-6)


def test_huge_channels_and_a_huge_first_position_do_not_cost_the_others():
    states = normal(64, 1, 96)
    states[:, :, 7] *= 3000
    states[0, :, [7, 20]] *= 500
    packed, _ = eight_bits.pack(states)
    stored = eight_bits.unpack(*packed.values(), torch.float32)
    others = [channel for channel in range(96) if channel != 7]

    def errors(found: torch.Tensor) -> torch.Tensor:
        return (found - states)[1:, 0, others].norm(dim=-1) / states[1:, 0, others].norm(dim=-1)

    assert errors(stored).max() < 0.03
    row_scale = states.abs().amax(-1, keepdim=True) / 127
    assert errors((states / row_scale).round() * row_scale).median() > 0.9, "a scale for each row alone would lose them"


def test_a_shard_without_documents_is_kept(tmp_path):
    packed, errors = eight_bits.pack(torch.empty(0, 3, 8))
    assert packed["states"].shape == (0, 3, 8) and errors == [0.0, 0.0, 0.0]


def test_a_store_in_8_bits_gives_documents_back_in_their_dtype_and_says_its_error(tmp_path, monkeypatch):
    documents = [document("a", 40, 1), document("b", 30, 2)]
    plain = write_store(tmp_path / "plain", [documents], dtype="bfloat16")
    monkeypatch.setitem(FACTS, "store_dtype", "int8")
    small = write_store(tmp_path / "small", [documents], dtype="bfloat16")
    store = Store(small)
    for i, given_document in enumerate(documents):
        assert store[i].states.dtype == torch.bfloat16 and torch.equal(store[i].token_ids, given_document.token_ids)
        error = (store[i].states.float() - given_document.states.float()).norm() / given_document.states.float().norm()
        assert 0 < error < 0.02
    (shard,) = small.glob("shard_*")
    assert all(0 < error < 0.02 for error in read_facts(shard)["store_error"])
    assert "store_error" not in read_facts(plain / shard.name)
