"""Whether drafting leaves the verifier's distribution alone at a temperature above 0: sampled replies put to the test.

`python -m harness.evaluation lossless` reads the samples that `measure` took from two servers, one that drafts and one
that does not, runs the verifier in float32 over each reply, and asks with `uniformity` whether the tokens were drawn
with its probabilities: apart for places where a draft stood, for the token behind accepted drafts, and for the rest.
The server without drafting is the control, asked where the drafting one fails. Were it to fail as well, the engine's
own rounding would be to blame, and the drafting server is held against the control instead of the reference.

What vLLM 0.32 does (read in its sources; the CPU kernels follow the same steps): drafts are greedy unless
`draft_sample_method` says otherwise, so that a draft d counts as certain (q is one-hot). It is accepted with the
verifier's probability p(d); if not, the token is sampled from p without d, renormalised (an exponential race over p,
d left out); behind drafts that were all accepted the ordinary sampler draws the bonus token. That is Leviathan's
rejection sampling (arXiv 2211.17192) for such a q, and leaves p as it is: `v1/sample/rejection_sampler.py` on the first
model runner, `v1/worker/gpu/spec_decode/rejection_sampler_utils.py` on the second, whose kernels
`harness.serving.cpu_support` computes on a CPU. Its mode `synthetic` accepts at fixed rates and is no sampler at all,
and the first runner of the CPU build as shipped loses the temperature (`harness.serving.cpu_support.temperature`).

Shape letters: M = tokens of the longest reply, R = replies to one prompt, V = vocabulary, N = sampled tokens.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.errors import UserError
from harness.evaluation.sampling import all_plain, places
from harness.evaluation.settings import LosslessSettings
from harness.evaluation.uniformity import ALL, Draws, Tests, against_control, against_truth, joined, ranks
from harness.progress import meter
from harness.verifiers.asking import Inputs, load_reference, parameters

Row = dict[str, Any]
# Parameters: float32 takes four bytes each, and a GPU of 80 GB has to hold them. Where rounding makes a larger
# reference miss, the base's own samples show it, and decide.
FLOAT32_REFERENCE_MAX = 16_000_000_000
LOGITS_MAX = 1 << 27  # entries of the logits at once: 512 MiB


class Reference:
    """The verifier in transformers: what it says after every token of sampled replies.

    In float32; in its own dtype where it has more than `FLOAT32_REFERENCE_MAX` parameters.
    """

    def __init__(self, folder: Path) -> None:
        dtype = torch.float32 if parameters(folder) <= FLOAT32_REFERENCE_MAX else "auto"
        self.model = load_reference(folder, dtype)
        self._inputs = Inputs(folder, self.model)

    @torch.no_grad()
    def logits(self, prompt: Sequence[int], replies: Sequence[Sequence[int]], images: Sequence[str] = ()) -> Tensor:
        """float32 [R, M, V]: entry i is what token i of the reply was sampled from. The prompt is read once for all."""
        longest = max(map(len, replies))
        padded_RM = torch.zeros(len(replies), longest, dtype=torch.long, device=self.model.device)
        for row, reply in enumerate(replies):
            padded_RM[row, : len(reply)] = torch.tensor(reply)
        start = self.model(**self._inputs(torch.tensor([prompt]), images), use_cache=True, logits_to_keep=1)
        first_RMV = start.logits.float().expand(len(replies), -1, -1)
        if longest == 1:
            return first_RMV
        cache = start.past_key_values
        cache.batch_repeat_interleave(len(replies))
        rest_RMV = self.model(padded_RM[:, :-1], past_key_values=cache, use_cache=True).logits.float()
        return torch.cat((first_RMV, rest_RMV), dim=1)


def _draws(logits_MV: Tensor, row: Row, temperature: float, random: np.random.Generator) -> tuple[Draws, list[float]]:
    """The tokens of one reply, and by how much the server's own log-probabilities differ from the reference's."""
    token_M = torch.tensor(row["token_ids"], device=logits_MV.device)
    logits_MV = logits_MV[: len(token_M)]
    chance_MV = (logits_MV / temperature).softmax(dim=-1)
    own_M1 = chance_MV.gather(1, token_M[:, None])
    above_M = torch.where(chance_MV > own_M1, chance_MV, 0.0).double().sum(dim=-1)
    top_M, likeliest_M = chance_MV.max(dim=-1)
    rank_M = ranks(above_M.cpu().numpy(), own_M1[:, 0].double().cpu().numpy(), random)
    place_M = np.array(row["places"])
    draws = Draws(top_M.double().cpu().numpy(), (likeliest_M == token_M).cpu().numpy(), rank_M, place_M)
    log_MV = logits_MV.log_softmax(dim=-1)
    gaps = [abs(float(log_MV[i, token]) - said) for i, (token, said) in enumerate(row["likeliest"])]
    return draws, gaps


def score(rows: Sequence[Row], reference: Reference, temperature: float, seed: int) -> tuple[Draws, float | None]:
    """(all sampled tokens against the reference, mean gap of the server's log-probabilities in nats).

    Args:
        rows: of samples.jsonl, each with its `places`.
        seed: of the random part of the ranks.
    """
    random = np.random.default_rng(seed)
    prompts: dict[str, list[Row]] = {}
    for row in rows:
        prompts.setdefault(row["id"], []).append(row)
    parts, gaps = [], []
    with meter("reference", len(rows), "replies") as bar:
        for group in prompts.values():
            for chunk in _chunks(group, reference.model.config.get_text_config().vocab_size):
                asked, images = chunk[0]["prompt_token_ids"], chunk[0].get("images", ())
                logits_RMV = reference.logits(asked, [row["token_ids"] for row in chunk], images)
                for row, logits_MV in zip(chunk, logits_RMV, strict=True):
                    draws, gap = _draws(logits_MV, row, temperature, random)
                    parts.append(draws)
                    gaps += gap
                bar.advance(len(chunk))
    return joined(parts), float(np.mean(gaps)) if gaps else None


def _chunks(group: list[Row], vocabulary: int) -> list[list[Row]]:
    longest = max(len(row["token_ids"]) for row in group)
    size = max(1, LOGITS_MAX // (longest * vocabulary))
    return [group[i : i + size] for i in range(0, len(group), size)]


def placed(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows with the kind of place of every token: all of them `drafting` where a step left no record.

    Raises:
        UserError: there are no samples.
    """
    if not rows:
        raise UserError(f"{name}: no sampled replies. Fix: measure the variant again")
    found = [places(row) for row in rows]
    known = all(kinds is not None for kinds in found)
    return [
        row | {"places": kinds if known else ["drafting"] * len(row["token_ids"])}
        for row, kinds in zip(rows, found, strict=True)
        if row["token_ids"]
    ]


def verdict(draws: Draws, ask_control: Callable[[], Draws], rate: float) -> dict[str, Any]:
    """The tests of a drafting server, and which of them decides.

    Args:
        draws: of the server that drafts.
        ask_control: the same of the server that does not; asked only where the drafting one fails.
        rate: false alarm rate.

    Returns:
        JSON object: `p_value`, `lossless` (it is not below `rate`), `compared_with` (`reference`, or `control` where
        the control fails against the reference itself), `found` in words, every answer under `tests`.
    """
    exact = against_truth(draws, rate)
    if exact.p_value >= rate:
        return _decided(exact, "reference", rate) | {"tests": exact.answers, "against_control": None, "control": None}
    control = ask_control()
    paired, base = against_control(draws, control), against_truth(control, rate)
    decided = _decided(exact, "reference", rate) if base.p_value >= rate else _decided(paired, "control", rate)
    return decided | {
        "tests": exact.answers,
        "against_control": {"p_value": paired.p_value, "tests": paired.answers},
        "control": {"p_value": base.p_value, "positions": len(control), "tests": base.answers},
    }


def _decided(tests: Tests, compared_with: str, rate: float) -> dict[str, Any]:
    return {
        "p_value": tests.p_value,
        "lossless": tests.p_value >= rate,
        "compared_with": compared_with,
        "found": _in_words(tests, rate),
    }


PLACES = {
    "plain": "tokens of the ordinary sampler", "draft": "tokens where a draft stood",
    "bonus": "tokens behind drafts that were all accepted", "drafting": "tokens of a server that drafts",
    ALL: "tokens of all places together",
}  # fmt: skip


def _in_words(tests: Tests, rate: float) -> str:
    if tests.p_value >= rate:
        return f"no difference from the verifier's distribution (p = {tests.p_value:.3g})"
    worst = tests.worst
    kind, _, number = worst["place"].partition(" ")
    which = f" ({number} of its step)" if number else ""
    told = f"{PLACES[kind]}{which} are not distributed as the verifier's (p = {tests.p_value:.3g})"
    shares = [a for a in tests.answers if a["place"] == worst["place"] and "found_share" in a]
    for answer in shares:
        told += f": its likeliest token makes {answer['found_share']:.1%} of them, not {answer['expected_share']:.1%}"
    return told


def figures(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the long table (reports/README.md)."""
    counts: dict[str, int] = {}
    biases: dict[str, float | None] = {}
    for answer in found["tests"]:
        if answer["question"] == "likeliest" and " " not in answer["place"]:
            counts[answer["place"]] = answer["positions"]
            biases[answer["place"]] = answer["detectable_bias"]
    rows: list[dict[str, Any]] = [{"metric": "sampling_p", "value": found["p_value"], "n": max(counts.values())}]
    for place, count in counts.items():
        rows.append({"metric": "sampling_positions", "benchmark": place, "value": count})
        bias = {"metric": "sampling_detectable_bias", "benchmark": place, "value": biases[place], "n": count}
        rows.append(bias | ({"note": "not run: too few open positions to tell"} if biases[place] is None else {}))
    return rows


def run_lossless(
    verifier: Path, base: Sequence[Row], variant: Sequence[Row], settings: LosslessSettings
) -> dict[str, Any]:
    """Content of lossless/<variant>.json without its provenance.

    Args:
        verifier: its folder.
        base: samples of the server that does not draft.
        variant: samples of the server that drafts.
        settings: slice of the reproduction.

    Raises:
        UserError: one side has no samples, or the base drafts.
    """
    if not all_plain(base):
        raise UserError("the base's samples.jsonl: it drafted. Fix: give the server without drafting as base")
    temperature, reference = settings.sampling.temperature, Reference(verifier)
    sampled, control = placed(variant, "the variant"), placed(base, "the base")
    draws, gap = score(sampled, reference, temperature, settings.seed)
    found = verdict(
        draws, lambda: score(control, reference, temperature, settings.seed)[0], settings.sampling.false_alarm_rate
    )
    about = {
        "temperature": temperature, "false_alarm_rate": settings.sampling.false_alarm_rate,
        "replies": len(variant), "positions": len(draws), "logprob_gap_nats": gap,
        "reference_dtype": str(reference.model.dtype).removeprefix("torch."),
    }  # fmt: skip
    return about | found | {"figures": figures(found)}
