"""A tiny verifier, drafts of random weights, packs, and what every algorithm must keep to; `dense` computes drafts.

For `<algorithm>/test_draft.py` and `test_training.py`. Shape letters: S = positions, T = rows of a block, H = width.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import algorithms
from algorithms.contract import Batch, LossOutput, VerifierWeights
from algorithms.dflash.training import block_states
from algorithms.vocabulary import choose

WIDTH, VOCABULARY, AUX, MASK, HEAD = 32, 61, [1, 2, 4], 60, 8
EPSILON, THETA = 1e-5, 100.0


def verifier_weights(seed: int = 0) -> VerifierWeights:
    generator = torch.Generator().manual_seed(seed)
    config = {
        "hidden_size": WIDTH, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": HEAD, "vocab_size": VOCABULARY, "max_position_embeddings": 256, "rms_norm_eps": EPSILON,
        "num_hidden_layers": 5, "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
    }  # fmt: skip
    random = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    return VerifierWeights(config, random(VOCABULARY, WIDTH), random(VOCABULARY, WIDTH), 1 + 0.3 * random(WIDTH))


# What each algorithm needs to draft 3 tokens of the tiny verifier.
SETTINGS: dict[str, dict[str, Any]] = {
    "dflash": {"block_size": 4},
    "dflash2": {"block_size": 4, "draft_vocab_size": None, "conv_group_size": 8, "selector_top_k": 4},
    "dspark": {"block_size": 3, "markov_rank": 4},
}


def make_config(algorithm: str, **settings: Any) -> Any:
    """Its settings, 3 drafts a step."""
    fields = algorithms.load(algorithm).Config.model_fields
    mask = {"mask_token_id": MASK} if "mask_token_id" in fields else {}
    return algorithms.load(algorithm).Config(**{"speculative_tokens": 3, "draft_vocab_size": 40} | mask | settings)


def make_draft(algorithm: str, draft_vocab_size: int | None = 40, seed: int = 1, **settings: Any) -> nn.Module:
    """Every parameter random, so that no part is the identity."""
    kind = algorithms.load(algorithm)
    config = make_config(algorithm, draft_vocab_size=draft_vocab_size, **settings)
    counts = torch.randint(0, 9, (VOCABULARY,), generator=torch.Generator().manual_seed(5))
    draft = kind.build(config, verifier_weights(), choose(counts, draft_vocab_size or VOCABULARY), AUX)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if parameter.dim() == 1 else 0.3 * noise)
    return draft


def sequence(length: int, seed: int = 3) -> tuple[Tensor, Tensor]:
    """(tokens, verifier states); the mask token does not occur."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, MASK, (length,), generator=generator)
    return tokens, torch.randn(length, len(AUX), WIDTH, generator=generator)


def pack(lengths: list[int], prompts: list[int], seed: int = 3, draw: int = 0) -> Batch:
    tokens, states = sequence(sum(lengths), seed)
    last = torch.randn(sum(lengths), WIDTH, generator=torch.Generator().manual_seed(seed + 1))
    document = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])
    mask = torch.cat([torch.arange(n) >= p for n, p in zip(lengths, prompts, strict=True)])
    return Batch(tokens, states, last, mask, document, draw)


def alone_and_twice() -> tuple[Batch, Batch]:
    """A document alone, and a pack of it twice."""
    twin = pack([9, 9], [3, 3])
    for field in ("token_ids_S", "aux_states_SAH", "last_state_SH"):
        getattr(twin, field)[9:] = getattr(twin, field)[:9]
    return Batch(*(getattr(twin, f)[:9] for f in twin.__dataclass_fields__ if f not in ("draw", "pack"))), twin


def start_of_document(batch: Batch, position: int) -> int:
    """Place in the pack of the first token of the document of `position`."""
    return int((batch.document_S == batch.document_S[position]).nonzero()[0])


def places_of_block(batch: Batch, anchor: int, count: int) -> Iterator[tuple[int, int]]:
    """(k, anchor + k) of the `count` drafts of a block, as far as they stand in the anchor's document."""
    for k in range(count):
        place = anchor + k  # of the token before the draft
        if place >= len(batch.token_ids_S) or batch.document_S[place] != batch.document_S[anchor]:
            return
        yield k, place


def verifiers_chances(batch: Batch, place: int, kept_D: Tensor) -> Tensor:
    """The verifier's probabilities of the kept tokens behind `place`, float64 [D]."""
    verifier, y = verifier_weights(), batch.last_state_SH[place].double()
    y = y / (y.pow(2).mean() + EPSILON).sqrt() * verifier.final_norm_H.double()
    return (verifier.head_VH[kept_D].double() @ y).softmax(-1)


def assert_near(got: Tensor, want: Tensor) -> None:
    """Equal up to float32 rounding: relative error of the whole vector, as one small entry alone says nothing.

    Steps that feed their state back magnify rounding (1e-5 was seen, by the number of threads); a fault gives 1e-2.
    """
    assert ((got - want).norm() / want.norm()).item() < 1e-4


def check_export_and_restore(algorithm: str, draft: nn.Module) -> None:
    """They are inverse: the same checkpoint, weights and drafts; d2t stands in it for a reduced vocabulary alone."""
    kind = algorithms.load(algorithm)
    content, tensors = kind.export(draft)
    again = kind.restore(content, tensors, verifier_weights())
    assert kind.export(again)[0] == content and again.shape == draft.shape
    assert all(torch.equal(a, b) for a, b in zip(draft.state_dict().values(), again.state_dict().values(), strict=True))
    assert ("d2t" in tensors) == (draft.shape.draft_vocab_size != VOCABULARY)
    tokens, states = sequence(7)
    assert torch.equal(kind.propose(draft, tokens, states, 3), kind.propose(again, tokens, states, 3))


def check_later_states_are_not_read(algorithm: str, draft: nn.Module) -> None:
    """States behind a position change later drafts alone."""
    propose = algorithms.load(algorithm).propose
    tokens, states = sequence(12)
    states[6:], changed = 100.0, states.clone()
    changed[6:] = -50.0
    a, b = (propose(draft, tokens, given, 3) for given in (states, changed))
    assert torch.equal(a[:6], b[:6]) and not torch.equal(a[6:], b[6:])


def check_fewer_tokens(algorithm: str, causal: nn.Module, both_ways: nn.Module, steps: Callable[..., Any]) -> None:
    """Fewer tokens of a causal block are the same tokens; of a bidirectional one they are others."""
    propose = algorithms.load(algorithm).propose
    tokens, states = sequence(12)
    assert torch.equal(propose(causal, tokens, states, 2), propose(causal, tokens, states, 3)[:, :2])
    two, three = (steps(both_ways, tokens, states[:11], count).output_KH for count in (2, 3))
    assert not torch.equal(two, three[:2])


def check_training_equals_drafting(draft: nn.Module, batch: Batch, anchor_R: Tensor, steps: Callable[..., Any]) -> None:
    """The rows of every block in training are those of drafting 3 tokens on the true prefix in its document."""
    states_RTH = block_states(draft, batch, anchor_R, 4)
    for row, anchor in enumerate(anchor_R.tolist()):
        first = start_of_document(batch, anchor)
        prefix = batch.token_ids_S[first : anchor + 1], batch.aux_states_SAH[first:anchor]
        assert_near(states_RTH[row, 1:], steps(draft, *prefix, 3).output_KH)


def check_a_step(draft: nn.Module, loss: Callable[[Batch], LossOutput]) -> None:
    """A step of training moves every weight of the draft's own and leaves the verifier's part alone."""
    draft.lm_head.weight.requires_grad_(False)
    head, embedding = draft.lm_head.weight.clone(), draft.embedding_VH.clone()
    before = {name: p.detach().clone() for name, p in draft.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW([p for p in draft.parameters() if p.requires_grad], lr=1e-2)
    loss(pack([9, 13], [3, 5])).loss.backward()
    optimizer.step()
    assert torch.equal(head, draft.lm_head.weight) and torch.equal(embedding, draft.embedding_VH)
    assert all(not torch.equal(before[n], p) for n, p in draft.named_parameters() if n in before)
