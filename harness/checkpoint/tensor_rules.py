"""Lint rules over the tensors of a draft whose config is well formed.

Shape letters: V = verifier vocabulary, D = draft vocabulary.
"""

from collections.abc import Iterator

import torch

from harness.checkpoint.findings import Rule, Saying, Subject, fault, note
from harness.checkpoint.stored import Readable, blocks, values_of

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
VOCABULARY_TABLES = ("d2t", "t2d")
WEIGHT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _dtype(tensor: Readable) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def missing_tensors(subject: Subject) -> Iterator[Saying]:
    """The server starts with uninitialised memory in their place, and says nothing."""
    missing = [name for name in subject.required if name not in subject.tensors]
    if missing:
        fix = "export the trained draft again, or convert it: names of other projects are not read"
        yield fault(f"missing: {_some(missing)}", fix)


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
    floats = {name: tensor for name, tensor in subject.tensors.items() if tensor.dtype in WEIGHT_DTYPES}
    share = subject.share(*floats.values())
    broken = [
        name
        for name, tensor in floats.items()
        if not all(bool(tensor[rows].isfinite().all()) for rows in blocks(tensor, share))
    ]
    if broken:
        yield fault(f"NaN or infinity in {_some(broken)}", "train again from a state before the loss broke")
    elif share < 1:
        yield note(f"about {share:.0%} of the values were looked at", "look at all of them with --all-values")


def _table(subject: Subject) -> Iterator[Saying]:
    """Whether `d2t` gives ascending, distinct ids of the verifier's, and the very ones that `t2d` marks."""
    size, target_D, t2d_V = subject.layer["vocab_size"], subject.targets_D, subject.tensors.get("t2d")
    assert target_D is not None
    kept_D = t2d_V[:].nonzero().flatten() if t2d_V is not None and tuple(t2d_V.shape) == (size,) else None
    offsets_D = target_D - torch.arange(target_D.numel())
    if kept_D is not None and torch.equal(offsets_D, kept_D) and not torch.equal(target_D, kept_D):
        yield fault("d2t holds target ids", "store offsets: target id minus draft id")
    elif int(target_D.min()) < 0 or int(target_D.max()) >= size:
        found = f"d2t leads to ids {int(target_D.min())}..{int(target_D.max())} of {size}"
        yield fault(found, "store offsets: target id minus draft id")
    elif bool((target_D[1:] <= target_D[:-1]).any()):
        yield fault("d2t does not give ascending, distinct target ids", "sort the draft vocabulary and store offsets")
    elif kept_D is not None and not torch.equal(target_D, kept_D):
        yield fault(f"d2t and t2d disagree: {len(target_D)} and {len(kept_D)} tokens", "write both from one list")


def vocabulary_tables(subject: Subject) -> Iterator[Saying]:
    """`d2t` holds offsets: target id = draft id + d2t[draft id]; `t2d` marks the same targets."""
    size, d2t_D, t2d_V = subject.layer["vocab_size"], subject.tensors.get("d2t"), subject.tensors.get("t2d")
    if subject.draft_vocabulary > size:
        yield fault(
            f"draft_vocab_size {subject.draft_vocabulary} above vocab_size {size}", "keep at most the verifier's tokens"
        )
    if not subject.is_reduced or d2t_D is None or tuple(d2t_D.shape) != (subject.draft_vocabulary,):
        return  # missing-tensors, unexpected-tensors or tensor-shapes says so
    if d2t_D.dtype != torch.int64:
        yield fault(f"d2t is {d2t_D.dtype}", "store offsets as int64")
    yield from _table(subject)
    if t2d_V is not None and t2d_V.dtype != torch.bool:
        yield fault(f"t2d is {t2d_V.dtype}", "store it as bool")


def stored_dtype(subject: Subject) -> Iterator[Saying]:
    """The server casts to the verifier's dtype; it dequantises nothing."""
    weights = {name: tensor for name, tensor in subject.tensors.items() if name not in VOCABULARY_TABLES}
    odd = [f"{name} ({_dtype(tensor)})" for name, tensor in weights.items() if tensor.dtype not in WEIGHT_DTYPES]
    if odd:
        yield fault(f"weights of other dtypes than floats: {_some(odd)}", "store float32, bfloat16 or float16")
    size_mb = sum(values_of(tensor) * tensor.dtype.itemsize for tensor in subject.tensors.values()) / 1e6
    kinds = ", ".join(sorted({_dtype(tensor) for tensor in weights.values()}))
    yield note(f"{size_mb:.1f} MB in {kinds}", "measure in the dtype that is served: the verifier's")


def weight_files(subject: Subject) -> Iterator[Saying]:
    """Without an index the server reads every safetensors file of the folder, whatever its name."""
    found = [name for name in subject.files if name.endswith(".safetensors")]
    if INDEX_FILE not in subject.files and len(found) > 1:
        others = [name for name in found if name != SINGLE_FILE]
        yield fault(f"{_some(others)} beside {SINGLE_FILE}", "delete what is not of the draft, or write an index")


TENSOR_RULES = (
    Rule("missing-tensors", "random weights draft, without an error", missing_tensors),
    Rule("unexpected-tensors", "the server stops, or drops a bias in silence", unexpected_tensors),
    Rule("tensor-shapes", "the server stops at load or at the first step", tensor_shapes),
    Rule("finite-values", "nothing is accepted", finite_values),
    Rule("vocabulary-tables", "other tokens are drafted than meant", vocabulary_tables),
    Rule("stored-dtype", "served in another precision than stored", stored_dtype),
    Rule("weight-files", "the server stops, or reads other weights", weight_files),
)
