"""What a draft of the first runner is told of its place beside a verifier with positions on three axes."""

from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.serving.cpu_support.image_positions import counting_tokens, token_positions


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=5))
def test_each_token_counts_the_tokens_before_it(requests: list[tuple[int, int]]):
    """Requests of (tokens before this step, tokens in it)."""
    starts = torch.tensor([0, *(new for _, new in requests)]).cumsum(0).int()
    lengths = torch.tensor([before + new for before, new in requests], dtype=torch.int32)
    expected = [before + i for before, new in requests for i in range(new)]
    assert token_positions(starts, lengths).tolist() == expected


class Proposer:
    """vLLM's as far as the wrapper sees it: it tells what it was given."""

    def __init__(self, uses_mrope: bool, needs_extra_input_slots: bool) -> None:
        self.uses_mrope, self.needs_extra_input_slots = uses_mrope, needs_extra_input_slots

    @counting_tokens
    def first_pass(self, target_positions: torch.Tensor, cad: object, other: int) -> tuple[torch.Tensor, int]:
        return target_positions, other


CAD = SimpleNamespace(query_start_loc=torch.tensor([0, 3, 4]), seq_lens=torch.tensor([3, 8]))
AXES = torch.tensor([[0, 0, 0, 5], [0, 0, 1, 5], [0, 1, 0, 5]])


def test_positions_on_three_axes_become_the_count_of_tokens():
    assert Proposer(False, True).first_pass(target_positions=AXES, cad=CAD, other=7)[0].tolist() == [0, 1, 2, 7]
    plain, other = Proposer(False, False).first_pass(target_positions=AXES, cad=CAD, other=7)
    assert plain[0].tolist() == [0, 1, 2, 7] and other == 7, "it takes the first axis itself"


def test_what_has_one_axis_or_wants_three_is_left_alone():
    text = torch.tensor([0, 1, 2, 7])
    assert Proposer(False, True).first_pass(target_positions=text, cad=CAD, other=0)[0] is text
    assert Proposer(True, False).first_pass(target_positions=AXES, cad=CAD, other=0)[0] is AXES
