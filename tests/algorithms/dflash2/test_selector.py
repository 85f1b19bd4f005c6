"""The candidate selector: scores by loops, the walk against its definition over all edges."""

import torch

from algorithms.dflash2.selector import CandidateSelector, greedy_walk

V, H, RANK, K, C = 23, 6, 4, 5, 3


def drawn(seed=0):
    torch.manual_seed(seed)
    selector = CandidateSelector(V, H, RANK)
    with torch.no_grad():
        for parameter in selector.parameters():
            parameter.normal_()
    return selector


def candidates(blocks):
    return torch.stack([torch.stack([torch.randperm(V)[:C] for _ in range(K)]) for _ in range(blocks)])


@torch.no_grad()
def edge(selector, output, before, candidate):
    """pred[before] * (W_h o) * succ[candidate], summed over the rank, in float64."""
    read = selector.hidden_projection.weight.double() @ output.double()
    factors = selector.predecessor_codebook[before].double() * read
    return float((factors * selector.successor_codebook[candidate].double()).sum())


def test_a_correction_is_the_product_of_three_vectors():
    selector = drawn()
    output, before, chosen = torch.randn(K, H), torch.randint(0, V, (K,)), candidates(1)[0]
    got = selector.corrections(selector.hidden_projection(output), before, chosen)
    want = [[edge(selector, output[k], before[k], c) for c in chosen[k]] for k in range(K)]
    torch.testing.assert_close(got, torch.tensor(want), rtol=1e-4, atol=1e-5)


def test_the_walk_takes_the_best_candidate_after_the_one_it_chose():
    selector = drawn()
    blocks = 40
    output, logits, chosen = torch.randn(blocks, K, H), torch.randn(blocks, K, C), candidates(blocks)
    anchors = torch.randint(0, V, (blocks,))
    got = greedy_walk(selector, output, anchors, logits, chosen)
    for block in range(blocks):
        # Every edge first, as the engine does, then the walk over their table.
        table = torch.zeros(K, C, C, dtype=torch.float64)
        for k in range(K):
            for p in range(C):
                before = anchors[block] if k == 0 else chosen[block, k - 1, p]
                for c in range(C):
                    score = edge(selector, output[block, k], before, chosen[block, k, c])
                    table[k, p, c] = float(logits[block, k, c]) + score
        at, want = 0, []
        for k in range(K):
            at = int(table[k, at].argmax())
            want.append(int(chosen[block, k, at]))
        assert got[block].tolist() == want
    assert (got != chosen[:, :, 0]).any(), "the walk must leave the first candidates somewhere"


def test_an_untrained_selector_leaves_the_logits_alone_and_learns():
    torch.manual_seed(0)
    selector = CandidateSelector(V, H, RANK)
    output, chosen = torch.randn(K, H), candidates(1)[0]
    scores = selector.corrections(selector.hidden_projection(output), torch.arange(K), chosen)
    assert not scores.any()
    scores[:, 0].sum().backward()
    assert selector.successor_codebook.grad.abs().sum() > 0
