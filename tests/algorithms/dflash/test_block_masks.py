"""Block attention against a loop over single rows, for any documents, anchors, windows and both causalities.

Shape letters: S = positions, R = blocks, T = rows of a block, N = heads, G = key-value heads, D = head size.
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.attention import Keys, Layout, attend_blocks, blocks_see

HEADS, GROUPS, SIZE = 4, 2, 6


def attended(query_ND, keys_LGD, values_LGD):
    """One row over the keys that it sees, [N * D]."""
    keys, values = (x.repeat_interleave(HEADS // GROUPS, dim=1) for x in (keys_LGD, values_LGD))
    weight_NL = (torch.einsum("nd,lnd->nl", query_ND, keys) * SIZE**-0.5).softmax(-1)
    return torch.einsum("nl,lnd->nd", weight_NL, values).flatten()


def sees(row: int, key: int, causal: bool, window: int | None) -> bool:
    """Contract 4.5 for positions counted from the anchor: keys before 0 are context, keys from 0 on the own block's."""
    if window is not None and abs(row - key) >= window:
        return False
    return key < 0 or not causal or key <= row


@st.composite
def packs(draw):
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    anchors = draw(st.sets(st.integers(0, sum(lengths) - 1), min_size=1, max_size=6))
    return lengths, sorted(anchors)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(packs(), st.integers(1, 5), st.booleans(), st.none() | st.integers(1, 12), st.integers(1, 4), st.integers(0, 1))
def test_each_row_attends_to_the_context_before_its_anchor_and_to_its_own_block(
    pack, rows, causal, window, columns, first
):
    lengths, anchors = pack
    first = min(first, rows - 1)
    document_S = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])
    generator = torch.Generator().manual_seed(len(document_S) * 31 + rows)
    random = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    key_SGD, value_SGD = random(2, len(document_S), GROUPS, SIZE)
    query_RTND = random(len(anchors), rows, HEADS, SIZE)
    own = random(len(anchors), rows, GROUPS, SIZE), random(len(anchors), rows, GROUPS, SIZE)

    context = Layout.of(document_S)
    taken = context.tile(torch.tensor(anchors), columns)
    mask = blocks_see(context, taken, rows, causal, window, first=first)
    found = attend_blocks(query_RTND[:, first:], Keys.of(context, key_SGD, value_SGD), own, taken, mask)

    for block, anchor in enumerate(anchors):
        start = int((document_S == document_S[anchor]).nonzero()[0])
        for row in range(first, rows):
            before = [j for j in range(start, anchor) if sees(row, j - anchor, causal, window)]
            inside = [j for j in range(rows) if sees(row, j, causal, window)]
            keys = torch.cat((key_SGD[before], own[0][block, inside]))
            values = torch.cat((value_SGD[before], own[1][block, inside]))
            want = attended(query_RTND[block, row], keys, values)
            assert torch.allclose(found[block, row - first], want, atol=1e-5)
