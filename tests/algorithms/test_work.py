"""What a training step computes: parameters against the real drafts, operations against a count by hand."""

from typing import Any

import pytest
from torch.utils.flop_counter import FlopCounterMode

import algorithms
from algorithms.work import Head, Matrix, Pack, Sizes, Work
from tests.algorithms.small import AUX, HEAD, MASK, VOCABULARY, WIDTH, make_draft, pack, verifier_weights

SIZES = Sizes(WIDTH, 48, 4 * HEAD, 2 * HEAD, VOCABULARY, len(AUX))
BLOCK = {"mask_token_id": MASK, "max_anchors": 40, "layers": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "eagle3": {"ttt_steps": 3, "layers": 2},
    "peagle": {"mask_token_id": MASK, "num_depths": 4, "max_anchors": 80},
    "dflash": BLOCK | {"block_size": 4},
    "dspark": BLOCK | {"block_size": 3, "markov_rank": 8},
    "dflash2": BLOCK | {"block_size": 4, "draft_vocab_size": None, "conv_group_size": 8, "selector_rank": 8},
}


def test_a_matrix_costs_six_operations_a_weight_and_row_and_four_where_its_input_is_not_trained():
    assert Matrix(10, 20, 7).flop == 6 * 10 * 20 * 7
    assert Matrix(10, 20, 7, reads_input=True).flop == 4 * 10 * 20 * 7


def test_a_muon_update_is_five_newton_schulz_steps():
    """Of a 10 x 20 matrix: a product with its transpose, its square, and the product with the matrix."""
    assert Matrix(20, 10, 1).muon_flop == 5 * (2 * 10 * 10 * 20 + 2 * 10 * 10 * 10 + 2 * 10 * 10 * 20)


def test_a_frozen_head_costs_its_gradient_by_the_weights_less():
    frozen, trained = (Head(10, 100, rows=7, targets=3, trained=value).flop for value in (False, True))
    assert frozen == 1000 * (7 * 4 + 3 * 2) and trained - frozen == 1000 * 7 * 2


def test_the_work_of_all_parts_is_their_sum():
    work = Work.of([Matrix(4, 5, 2)], (2, 3, 4), Head(4, 6, 2, 1, False), tables=9)
    assert work.parameters == 20 + 9
    assert work.network_flop == 6 * 20 * 2 + 12 * 2 * 3 * 4
    assert work.logits == 3 * 6


def _settings(name: str, **changes: Any) -> dict[str, Any]:
    return {"speculative_tokens": 3, "draft_vocab_size": 40} | SETTINGS.get(name, {}) | changes


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_the_parameters_are_those_of_the_draft(name: str):
    """But for the vectors, and for the one row of a confidence head."""
    settings = _settings(name)
    work = algorithms.config_class(name)(**settings).work(SIZES, Pack(100, 50, 25))
    draft = make_draft(name, **settings)
    matrices = sum(p.numel() for p in draft.parameters() if p.requires_grad and p.dim() == 2)
    assert work.parameters == pytest.approx(matrices, rel=0.005)


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_the_operations_are_those_that_a_step_computes(name: str):
    """Against PyTorch's own count of products, on a pack of four documents whose halves are replies."""
    settings = _settings(name)
    config = algorithms.config_class(name)(**settings)
    draft, batch = make_draft(name, **settings), pack([60] * 4, [30] * 4)
    loss = algorithms.load(name).objective(config, verifier_weights(), draft)
    with FlopCounterMode(display=False) as counter:
        loss(batch).loss.backward()
    work = config.work(SIZES, Pack(240, 120, 60))
    assert work.network_flop + work.head_flop == pytest.approx(counter.get_total_flops(), rel=0.15)


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_twice_the_pack_is_at_most_twice_the_work(name: str):
    config = algorithms.config_class(name)(**_settings(name))
    one, two = (config.work(SIZES, Pack(n * 1000, n * 500, 100)) for n in (1, 2))
    assert one.network_flop < two.network_flop <= 2 * one.network_flop
    assert one.parameters == two.parameters and one.muon_flop == two.muon_flop
