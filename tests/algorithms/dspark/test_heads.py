"""The two heads against their definition, token by token in float64."""

import pytest
import torch

from algorithms.dspark.heads import ConfidenceHead, MarkovHead
from algorithms.tables import is_table

VOCABULARY, DRAFT_VOCABULARY, RANK, WIDTH, ROWS = 23, 11, 4, 6, 9


def randomised(head, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return head


def test_the_markov_bias_is_the_product_of_the_previous_tokens_row_and_the_next_tokens_row():
    head = randomised(MarkovHead(VOCABULARY, DRAFT_VOCABULARY, RANK))
    w1, w2 = head.markov_w1.weight.double().tolist(), head.markov_w2.weight.double().tolist()
    previous = [0, 22, 7, 7]
    found = head.bias(head.embed(torch.tensor(previous)))
    assert found.shape == (4, DRAFT_VOCABULARY)
    for row, token in enumerate(previous):
        for candidate in range(DRAFT_VOCABULARY):
            want = sum(a * b for a, b in zip(w1[token], w2[candidate], strict=True))
            assert found[row, candidate].item() == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize("rank", [0, RANK])
def test_the_confidence_is_one_linear_row_over_the_output_and_the_embedding(rank):
    head = randomised(ConfidenceHead(WIDTH, rank))
    output, embedding = randomised(torch.nn.Linear(WIDTH + RANK, ROWS)).weight.detach().split((WIDTH, RANK), dim=1)
    found = head(output, embedding)
    weights, bias = head.proj.weight[0].double().tolist(), head.proj.bias.item()
    for row in range(ROWS):
        read = output[row].tolist() + embedding[row].tolist()[:rank]
        want = sum(a * b for a, b in zip(weights, read, strict=True)) + bias
        assert found[row].item() == pytest.approx(want, abs=1e-4)


def test_the_confidence_is_computed_in_float32_whatever_the_compute_dtype():
    head = randomised(ConfidenceHead(WIDTH, RANK))
    output, embedding = torch.randn(ROWS, WIDTH).bfloat16(), torch.randn(ROWS, RANK).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reduced = head(output, embedding)
    assert reduced.dtype == torch.float32
    assert torch.equal(reduced, head(output.float(), embedding.float()))


def test_untrained_heads_add_nothing_and_promise_nothing():
    markov, confidence = MarkovHead(VOCABULARY, DRAFT_VOCABULARY, RANK), ConfidenceHead(WIDTH, RANK)
    embedding = markov.embed(torch.arange(VOCABULARY))
    assert not markov.bias(embedding).any() and embedding.std().item() == pytest.approx(0.01, rel=0.3)
    assert (confidence(torch.randn(VOCABULARY, WIDTH), embedding).sigmoid() == 0.5).all()


def test_the_tables_of_token_pairs_are_marked_as_tables_and_learn_from_the_second_step_on():
    torch.manual_seed(0)
    head = MarkovHead(VOCABULARY, DRAFT_VOCABULARY, RANK)
    assert all(is_table(parameter) for parameter in head.parameters())
    optimizer = torch.optim.SGD(head.parameters(), lr=1.0)
    before = head.markov_w1.weight.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(head.bias(head.embed(torch.tensor([3, 8]))), torch.tensor([1, 2])).backward()
        optimizer.step()
    moved = (head.markov_w1.weight != before).any(dim=1).nonzero().flatten()
    assert moved.tolist() == [3, 8]
