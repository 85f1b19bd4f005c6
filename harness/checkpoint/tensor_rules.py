"""Lint rules over the tensors of a draft whose config is well formed.

Shape letters: V = verifier vocabulary, D = draft vocabulary.
"""

from collections.abc import Iterator

import torch

from harness.checkpoint.findings import Rule, Saying, Subject, fault, note


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def missing_tensors(subject: Subject) -> Iterator[Saying]:
    """The server starts with uninitialised memory in their place, and says nothing."""
    missing = [name for name in subject.required if name not in subject.tensors]
    if missing:
        yield fault(f"missing: {_some(missing)}", "export the trained draft again")


def unexpected_tensors(subject: Subject) -> Iterator[Saying]:
    """The server stops at an unknown name, unless it ends in .bias: that one it drops in silence."""
    extra = [name for name in subject.tensors if name not in subject.required and name not in subject.optional]
    if extra:
        yield fault(f"not part of such a draft: {_some(extra)}", "leave them out, or set the flag that they belong to")


def tensor_shapes(subject: Subject) -> Iterator[Saying]:
    """Shapes must follow the config."""
    for name, shape in (subject.required | subject.optional).items():
        if name in subject.tensors and tuple(subject.tensors[name].shape) != shape:
            found = f"{name} is {list(subject.tensors[name].shape)}, the config says {list(shape)}"
            yield fault(found, "export config and tensors from one draft")


def finite_values(subject: Subject) -> Iterator[Saying]:
    """One NaN in the draft makes every proposal token 0."""
    broken = [name for name, t in subject.tensors.items() if t.is_floating_point() and not bool(t.isfinite().all())]
    if broken:
        yield fault(f"NaN or infinity in {_some(broken)}", "train again from a state before the loss broke")


def vocabulary_tables(subject: Subject) -> Iterator[Saying]:
    """`d2t` holds offsets: target id = draft id + d2t[draft id]; `t2d` marks the same targets."""
    size, reduced = subject.layer["vocab_size"], subject.is_reduced
    if subject.draft_vocabulary > size:
        yield fault(
            f"draft_vocab_size {subject.draft_vocabulary} above vocab_size {size}", "keep at most the verifier's tokens"
        )
    d2t_D, t2d_V = subject.tensors.get("d2t"), subject.tensors.get("t2d")
    if not reduced or d2t_D is None or d2t_D.shape != (subject.draft_vocabulary,):
        return  # missing-tensors, unexpected-tensors or tensor-shapes says so
    if d2t_D.dtype != torch.int64:
        yield fault(f"d2t is {d2t_D.dtype}", "store offsets as int64")
    target_D = d2t_D.long() + torch.arange(d2t_D.numel())
    kept_D = t2d_V.nonzero().flatten() if t2d_V is not None and t2d_V.shape == (size,) else None
    if kept_D is not None and torch.equal(d2t_D.long(), kept_D) and not torch.equal(target_D, kept_D):
        yield fault("d2t holds target ids", "store offsets: target id minus draft id")
    elif int(target_D.min()) < 0 or int(target_D.max()) >= size:
        found = f"d2t leads to ids {int(target_D.min())}..{int(target_D.max())} of {size}"
        yield fault(found, "store offsets: target id minus draft id")
    elif bool((target_D[1:] <= target_D[:-1]).any()):
        yield fault("d2t does not give ascending, distinct target ids", "sort the draft vocabulary and store offsets")
    elif kept_D is not None and not torch.equal(target_D, kept_D):
        yield fault(f"d2t and t2d disagree: {d2t_D.numel()} and {kept_D.numel()} tokens", "write both from one list")
    if t2d_V is not None and t2d_V.dtype != torch.bool:
        yield fault(f"t2d is {t2d_V.dtype}", "store it as bool")


def stored_dtype(subject: Subject) -> Iterator[Saying]:
    """The server casts to the verifier's dtype."""
    names = sorted({str(t.dtype).removeprefix("torch.") for t in subject.tensors.values() if t.is_floating_point()})
    size_mb = sum(t.numel() * t.element_size() for t in subject.tensors.values()) / 1e6
    yield note(f"{size_mb:.1f} MB in {', '.join(names)}", "measure in the dtype that is served: the verifier's")


TENSOR_RULES = (
    Rule("missing-tensors", "random weights draft, without an error", missing_tensors),
    Rule("unexpected-tensors", "the server stops, or drops a bias in silence", unexpected_tensors),
    Rule("tensor-shapes", "the server stops at load or at the first step", tensor_shapes),
    Rule("finite-values", "nothing is accepted", finite_values),
    Rule("vocabulary-tables", "other tokens are drafted than meant", vocabulary_tables),
    Rule("stored-dtype", "served in another precision than stored", stored_dtype),
)
