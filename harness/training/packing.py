"""Documents into packs: each optimiser step reads whole documents of about the same number of tokens.

Called by `loop`. A pack has no padding; the order depends on the seed and the epoch alone, so a resumed run reads on
exactly where the killed one stopped.
"""

import random
from collections.abc import Sequence

import torch

from algorithms.contract import Batch, Pack
from harness.capture.store import Store


def split_rows(rows: int, validation_share: float, seed: int) -> tuple[list[int], list[int]]:
    """(training rows, validation rows), both ascending and together all rows; at least one each."""
    order = list(range(rows))
    random.Random(f"split-{seed}").shuffle(order)
    held = min(max(1, round(rows * validation_share)), rows - 1)
    return sorted(order[held:]), sorted(order[:held])


def epoch_packs(
    rows: Sequence[int], lengths: Sequence[int], tokens_per_step: int, seed: int, epoch: int
) -> list[list[int]]:
    """The packs of one epoch: rows in a shuffled order, cut into equal numbers of tokens as near as documents allow.

    Args:
        rows: row numbers to use; every one stands in exactly one pack.
        lengths: tokens of each row of the store.
        tokens_per_step: wanted tokens in a pack.
    """
    order = list(rows)
    random.Random(f"epoch-{seed}-{epoch}").shuffle(order)
    total = sum(lengths[row] for row in order)
    count = max(1, round(total / tokens_per_step))
    packs: list[list[int]] = [[] for _ in range(count)]
    seen = 0
    for row in order:
        # The middle of a document decides its pack, so that no pack is a small rest.
        packs[min(count - 1, int((seen + lengths[row] / 2) * count / total))].append(row)
        seen += lengths[row]
    return [pack for pack in packs if pack]


def reading_order(
    packs: Sequence[tuple[int, list[int]]], validation_rows: Sequence[int], step: int
) -> tuple[list[list[int]], int]:
    """The rows in the order in which a training asks for them, and where a training after `step` steps goes on.

    Args:
        packs: epoch and rows of every step. After the last one of an epoch the validation reads its rows.
    """
    order, first = list[list[int]](), 0
    for number, (epoch, rows) in enumerate(packs):
        first = len(order) if number == step else first
        order.append(rows)
        if number + 1 == len(packs) or packs[number + 1][0] != epoch:
            order.append(list(validation_rows))
    # A training that had ended is only validated again.
    return order, len(order) - 1 if step == len(packs) else first


def make_batch(store: Store, rows: Sequence[int], draw: int = 0, own: Sequence[int] | None = None) -> Batch:
    """The documents of a pack, one after another.

    Args:
        rows: the pack.
        draw: seeds what the loss draws at random.
        own: those that the batch holds, in the pack's order; None for all. An empty one holds one that does not count.
    """
    held = rows if own is None else own or [min(rows, key=store.lengths.__getitem__)]
    documents = store.documents(held)
    states = [store.split_states(document) for document in documents]
    return Batch(
        token_ids_S=torch.cat([document.token_ids for document in documents]),
        aux_states_SAH=torch.cat([aux for aux, _ in states]),
        last_state_SH=torch.cat([last for _, last in states]),
        loss_mask_S=torch.cat([document.loss_mask for document in documents]),
        document_S=_numbers([document.loss_mask for document in documents]),
        draw=draw,
        pack=None if own is None else _pack(store, rows, held, counts=bool(own)),
    )


def _numbers(masks: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([torch.full((len(mask),), i) for i, mask in enumerate(masks)])


def _pack(store: Store, rows: Sequence[int], held: Sequence[int], counts: bool) -> Pack:
    masks = store.masks(rows)
    return Pack(
        loss_mask_S=torch.cat(masks),
        document_S=_numbers(masks),
        own_S=torch.cat([torch.full((len(mask),), row in held) for row, mask in zip(rows, masks, strict=True)]),
        counts=counts,
    )
