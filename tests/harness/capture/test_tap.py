"""The tap hands out a reply's own rows or none, whatever the batch did; without vLLM, steps are played to it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from harness.capture.tap import StatesDiffer, StateTap

WIDTH, LAYERS = 4, [1, 3]


class Model(nn.Module):
    """A model whose state at layer id i of token t is 100 i + t, as vLLM's models give them."""

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        self.layers = layers

    def forward(
        self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        input_ids = inputs_embeds if input_ids is None else input_ids
        states = [(100.0 * i + input_ids)[:, None].expand(-1, WIDTH) for i in self.layers]
        return input_ids[:, None].float(), states


class Worker(StateTap):
    """vLLM's worker as far as the tap sees it."""

    def __init__(self, model: nn.Module | None = None, rank: int = 0) -> None:
        self.rank = rank
        self.model_runner = SimpleNamespace(model=model or Model())

    def step(self, batch: list[tuple[str, int, list[int]]], padding: int = 0, embedded: bool = False) -> torch.Tensor:
        """One engine step over (request, first position, tokens), which the model is given as such or `embedded`."""
        starts = np.cumsum([0, *(len(tokens) for _, _, tokens in batch)])
        self.model_runner.query_start_loc = SimpleNamespace(np=np.concatenate([starts, [starts[-1]] * 3]))
        self.model_runner.input_batch = SimpleNamespace(
            req_ids=[request for request, _, _ in batch],
            num_computed_tokens_cpu=np.array([first for _, first, _ in batch] + [0] * 3),
        )
        tokens = torch.tensor([token for _, _, tokens in batch for token in tokens] + [0] * padding)
        self.model_runner.input_ids = SimpleNamespace(gpu=torch.cat((tokens, torch.zeros(9, dtype=torch.long))))
        if embedded:
            return self.model_runner.model(input_ids=None, inputs_embeds=tokens)
        return self.model_runner.model(input_ids=tokens)


@pytest.fixture
def worker() -> Worker:
    made = Worker()
    made.tap_install(LAYERS, max_positions=8)
    return made


def expected(tokens: list[int]) -> torch.Tensor:
    return torch.tensor([[[100.0 * i + t] * WIDTH for i in LAYERS] for t in tokens])


def test_rows_find_their_request_and_position_in_any_order_of_the_batch(worker: Worker) -> None:
    worker.step([("a", 0, [5, 6, 7]), ("b", 0, [9])])
    worker.step([("b", 1, [4]), ("a", 3, [8])], padding=2)
    worker.step([("c", 0, [1, 2]), ("b", 2, [3])])
    assert torch.equal(worker.tap_take("b", [9, 4, 3]), expected([9, 4, 3]))
    assert torch.equal(worker.tap_take("a", [5, 6, 7, 8]), expected([5, 6, 7, 8]))
    assert torch.equal(worker.tap_take("c", [1, 2]), expected([1, 2]))


def test_tokens_that_the_model_is_given_as_embeddings_are_known_all_the_same(worker: Worker) -> None:
    worker.step([("a", 0, [5, 6, 7]), ("b", 0, [9])], padding=2, embedded=True)
    assert torch.equal(worker.tap_take("a", [5, 6, 7]), expected([5, 6, 7]))
    with pytest.raises(StatesDiffer, match="position 0 has the state of token 9, not 8"):
        worker.tap_take("b", [8])


def test_the_engine_sees_the_output_it_would_have_had(worker: Worker) -> None:
    assert torch.equal(worker.step([("a", 0, [5, 6])]), torch.tensor([[5.0], [6.0]]))


def test_states_of_another_token_are_not_handed_out(worker: Worker) -> None:
    worker.step([("a", 0, [5, 6, 7])])
    with pytest.raises(StatesDiffer, match="request a: position 1 has the state of token 6, not 4"):
        worker.tap_take("a", [5, 4, 7])


def test_a_prefix_that_was_not_computed_is_noticed(worker: Worker) -> None:
    worker.step([("a", 2, [7, 8])])
    with pytest.raises(StatesDiffer, match="position 0 has the state of token -1, not 5"):
        worker.tap_take("a", [5, 6, 7, 8])


def test_a_missing_last_row_is_noticed(worker: Worker) -> None:
    worker.step([("a", 0, [5, 6])])
    with pytest.raises(StatesDiffer, match="position 2"):
        worker.tap_take("a", [5, 6, 7])


def test_a_request_that_was_never_computed_is_noticed(worker: Worker) -> None:
    with pytest.raises(StatesDiffer, match="request x: no states were recorded for 2 tokens"):
        worker.tap_take("x", [1, 2])


def test_a_preempted_request_starts_over(worker: Worker) -> None:
    worker.step([("a", 0, [5, 6, 7])])
    worker.step([("a", 3, [8])])
    worker.step([("a", 0, [5, 6])])
    with pytest.raises(StatesDiffer, match="position 2"):
        worker.tap_take("a", [5, 6, 7, 8])


def test_room_that_is_used_again_keeps_nothing_of_the_request_before(worker: Worker) -> None:
    worker.step([("a", 0, [5, 6, 7])])
    taken = worker.tap_take("a", [5, 6, 7])
    worker.step([("b", 0, [1])])
    assert torch.equal(taken, expected([5, 6, 7]))
    with pytest.raises(StatesDiffer, match="position 1 has the state of token -1"):
        worker.tap_take("b", [1, 6])


def test_a_verifier_that_hides_its_layers_is_refused() -> None:
    with pytest.raises(TypeError, match="Linear does not hand out hidden states"):
        Worker(nn.Linear(1, 1)).tap_install(LAYERS, 8)


def test_of_several_workers_the_first_records(worker: Worker) -> None:
    second = Worker(rank=1)
    second.tap_install(LAYERS, max_positions=8)
    second.model_runner.model.layers = ()
    second.step([("a", 0, [5, 6])])
    assert second.tap_take("a", [5, 6]) is None
    second.tap_remove()


def test_a_tap_that_is_removed_leaves_the_model_as_it_was(worker: Worker) -> None:
    worker.step([("a", 0, [5, 6])])
    worker.tap_remove()
    hidden, layers = worker.step([("b", 0, [7])])
    assert (hidden.tolist(), layers) == ([[7.0]], [])
    with pytest.raises(StatesDiffer, match="no states were recorded"):
        worker.tap_take("b", [7])
