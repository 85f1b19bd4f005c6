"""Trains a miniature in two processes that read half of every batch each. Called by `build` and `vision`.

At this size the threads inside an operation cost more than they bring, and threads around them wait for Python's lock.
Parameters and gradients lie in shared memory: each process adds up both gradients, the same in either order, and moves
its part of the parameters, so that a seed gives the same model every time.
"""

import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch
from torch import multiprocessing, nn

from harness.errors import UserError
from harness.orphans import die_with_parent
from harness.progress import meter
from harness.sections.verifier import MiniatureVerifier

if TYPE_CHECKING:
    from torch import Tensor

# Token ids, which of them the assistant says, both [B, S]; and what makes the inputs beside all ids but the last.
Half = tuple["Tensor", "Tensor", Callable[[], dict[str, "Tensor"]]]
MUON_RATE, ADAM_RATE, WARMUP_SHARE, GRADIENT_NORM_MAX = 1e-2, 8e-3, 0.05, 1.0
QUERY_RATE = 3e-3  # of queries and keys that no norm follows; Muon's even steps drown what they learn in noise
BALANCE = 0.02  # weight of how unevenly experts are used: without, gpt-oss's routers settle on two of four for good
HALVES = 2


class OtherGone(Exception):
    """The process with the other half has ended."""


@dataclass(frozen=True)
class Shared:
    """What both processes see: one row of gradients and one loss each, and a pipe on which they wait for one another.

    Not a barrier: that waits for a process that was killed, and its locks do so without a limit. A pipe ends with it.
    """

    gradients_2N: "Tensor"
    losses_2: "Tensor"
    ends: tuple[Connection, Connection]

    def keep(self, half: int) -> None:
        """Close the end of the other process here, so that it closes for good when that one ends."""
        self.ends[1 - half].close()

    def meet(self, half: int) -> None:
        """Wait until both are here.

        Raises:
            OtherGone: the other will not come.
        """
        try:
            self.ends[half].send_bytes(b"here")
            self.ends[half].recv_bytes()
        except (EOFError, OSError):
            raise OtherGone from None


def train(model: Any, packs: Sequence[list[Half]], verifier: MiniatureVerifier) -> None:
    """One pass over batches in halves; the rate rises for a share of the steps and then falls in a straight line.

    Raises:
        UserError: the loss is not finite, or the other process died.
    """
    model.train().share_memory()
    processes = multiprocessing.get_context("fork")
    count = sum(parameter.numel() for parameter in model.parameters())
    shared = Shared(torch.zeros(HALVES, count).share_memory_(), torch.zeros(HALVES).share_memory_(), processes.Pipe())
    tokens = sum(ids_BS.numel() for pack in packs for ids_BS, *_ in pack)
    other = processes.Process(target=_other, args=(model, packs, shared), daemon=True)
    with _one_thread(), meter(f"{verifier.id}: training", tokens, "tokens") as bar:
        other.start()
        shared.keep(0)
        try:
            for step, loss in enumerate(_steps(0, model, packs, shared)):
                if not math.isfinite(loss):
                    raise UserError(f"verifier {verifier.id}: the loss is not finite at step {step}. Fix: another seed")
                bar.advance(sum(ids_BS.numel() for ids_BS, *_ in packs[step]), f"loss {loss:.3f}")
        except OtherGone:
            raise UserError(
                f"verifier {verifier.id}: the second process of its training died. Fix: free memory, and run again"
            ) from None
        finally:
            other.kill()
            other.join()
    for parameter in model.parameters():
        parameter.grad = None


def _other(model: Any, packs: Sequence[list[Half]], shared: Shared) -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the first process's, which ends this one
    shared.keep(1)
    with suppress(OtherGone):
        for _ in _steps(1, model, packs, shared):
            pass


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _steps(half: int, model: Any, packs: Sequence[list[Half]], shared: Shared) -> Iterator[float]:
    """The steps of one process; gives the loss of both after each, before it counts."""
    own_N = shared.gradients_2N[half]
    total_N = torch.empty_like(own_N)
    for _, parameter, gradient in _with_parts(model, own_N):
        parameter.grad = gradient
    optimizers = _optimizers(model, total_N, half)
    for step, pack in enumerate(packs):
        own_N.zero_()
        said = sum(int(said_BS.sum()) for _, said_BS, _ in pack)
        shared.losses_2[half] = _learn(model, said, pack[half]) if half < len(pack) else 0.0
        shared.meet(half)
        torch.sum(shared.gradients_2N, dim=0, out=total_N)
        loss = float(shared.losses_2.sum())
        total_N *= (GRADIENT_NORM_MAX / (total_N.norm() + 1e-6)).clamp(max=1.0)
        share = min((step + 1) / max(1, WARMUP_SHARE * len(packs)), 1.02 - step / len(packs))
        for optimizer, rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * share
            optimizer.step()
        shared.meet(half)
        yield loss


def _with_parts(model: Any, vector_N: "Tensor") -> Iterator[tuple[str, nn.Parameter, "Tensor"]]:
    """Every parameter, with its name and its part of a vector that holds one number for each of theirs."""
    named = dict(model.named_parameters())
    parts = vector_N.split([parameter.numel() for parameter in named.values()])
    for (name, parameter), part in zip(named.items(), parts, strict=True):
        yield name, parameter, part.view_as(parameter)


def _learn(model: Any, said: int, half: Half) -> float:
    """Add the gradient of a part of a batch that says `said` tokens in all; returns its share of the loss."""
    ids_BS, said_BS, beside = half
    if not len(ids_BS):
        return 0.0
    loss, unevenness = _loss(model, ids_BS, said_BS, beside())
    loss = loss / said
    (loss + BALANCE / HALVES * unevenness).backward()
    return loss.item()


def _loss(
    model: Any, ids_BS: "Tensor", said_BS: "Tensor", beside: dict[str, "Tensor"]
) -> tuple["Tensor", "Tensor | float"]:
    """Cross-entropy of what the assistant says, summed, and how unevenly experts are used.

    Padding is on the right: a causal mask alone keeps it away.
    """
    chosen = getattr(model.config.get_text_config(), "num_experts_per_tok", 0)
    wanted = {"output_router_logits": True} if chosen else {}
    with torch.autocast("cpu", torch.bfloat16):
        out = model.model(input_ids=ids_BS[:, :-1], use_cache=False, **wanted, **beside)
        logits_RV = model.lm_head(out.last_hidden_state[said_BS[:, 1:]])
    loss = nn.functional.cross_entropy(logits_RV.float(), ids_BS[:, 1:][said_BS[:, 1:]], reduction="sum")
    routers = out.router_logits if chosen else ()
    return loss, sum(_unevenness(logits_RE.float(), chosen) for logits_RE in routers) / max(1, len(routers))


def _unevenness(logits_RE: "Tensor", chosen: int) -> "Tensor":
    """1 where all E experts of a layer get as many of R tokens, E / chosen where the same ones get all (Switch
    Transformers, arXiv 2101.03961, equation 4)."""
    experts = logits_RE.shape[1]
    taken_E = torch.bincount(logits_RE.topk(chosen).indices.flatten(), minlength=experts) / logits_RE.shape[0] / chosen
    return experts * (taken_E * logits_RE.softmax(-1).mean(0)).sum()


def _optimizers(model: Any, total_N: "Tensor", half: int) -> list[tuple[torch.optim.Optimizer, float]]:
    """What one process moves by the gradients of both, with full rates: every second matrix of the layers with Muon,
    the first process also the rest with AdamW."""
    moved: dict[str, list[nn.Parameter]] = {"matrices": [], "queries": [], "others": []}
    normed = any("q_norm" in name for name, _ in model.named_parameters())
    for name, parameter, gradient in _with_parts(model, total_N):
        moved[_kind(name, parameter, normed)].append(_moved(parameter, gradient))
    matrices = moved["matrices"][half::HALVES]
    muon = torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    rates = {"others": ADAM_RATE, "queries": QUERY_RATE} if not half else {}
    return [(muon, MUON_RATE)] + [
        (torch.optim.AdamW(moved[kind], lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True), rate)
        for kind, rate in rates.items()
        if moved[kind]
    ]


def _kind(name: str, parameter: "Tensor", normed: bool) -> str:
    if parameter.dim() != 2 or any(word in name for word in ("embed", "head", "bias")):
        return "others"
    return "queries" if not normed and ("q_proj" in name or "k_proj" in name) else "matrices"


def _moved(parameter: "Tensor", gradient: "Tensor") -> nn.Parameter:
    """The same numbers as a parameter with a gradient of its own."""
    moved = nn.Parameter(parameter.detach())
    moved.grad = gradient
    return moved
