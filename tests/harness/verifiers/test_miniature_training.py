"""The training of a miniature by two processes: how evenly experts are used, and what is said when one of them dies."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UserError
from harness.sections.verifier import MiniatureVerifier
from harness.verifiers.miniature import training
from harness.verifiers.miniature.build import build


@given(st.integers(2, 6), st.integers(1, 2))
def test_experts_that_all_get_the_same_share_are_even_and_the_same_few_are_not(experts, chosen):
    tokens = 4 * experts
    first = torch.arange(tokens)[:, None] + torch.arange(chosen)
    taking_turns = torch.zeros(tokens, experts).scatter_(1, first % experts, 20.0)
    assert training._unevenness(taking_turns, chosen) == pytest.approx(1.0, rel=1e-4)
    always_the_same = torch.zeros(tokens, experts)
    always_the_same[:, :chosen] = 20.0
    assert training._unevenness(always_the_same, chosen) == pytest.approx(experts / chosen, rel=1e-4)


def test_a_second_process_that_dies_ends_the_training_with_one_line(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(training, "_learn", _dies_in_the_second)
    verifier = MiniatureVerifier(source="miniature", id="specproof/llama", family="llama", training_tokens=10_000)
    with pytest.raises(UserError, match=r"the second process of its training died. Fix: free memory"):
        build(verifier, tmp_path)
    assert not list(tmp_path.iterdir())


def _dies_in_the_second(*_) -> float:
    if torch.multiprocessing.parent_process():
        raise MemoryError
    return 1.0
