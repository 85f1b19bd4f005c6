"""Samples from vLLM in this process, without drafting, with it, and with faults planted in its rejection sampler.

Run by `test_sampling_served` as `python -m tests.interop.sample_drafted JOB.json` in the folder of the job, which is
{"verifier": folder, "prompts": [[ids]], "samples": n, "max_tokens": n, "temperature": t, "draft_tokens": k}. The
verifier drafts for itself, so that drafts are often right. `<name>.jsonl` is left for `none`, `right` and each of
`FAULTS`, in the form of samples.jsonl.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.interop.one_process import ENVIRONMENT

os.environ |= ENVIRONMENT

import torch
from torch import Tensor
from vllm import LLM, SamplingParams
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.sampler import Sampler

from harness.files import write_jsonl
from harness.serving import cpu_support

SHIPPED = rejection_sampler.expand_batch_to_tokens
cpu_support.install(second_runner=False)  # as our server does


def accept_all(uniform: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Every draft is at least as likely as zero."""
    return lambda *arguments, **named: torch.zeros_like(uniform(*arguments, **named))


def resample_all(_: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The refused draft can come again."""
    return lambda *arguments, **__: arguments[5].multinomial(1)[:, 0].to(arguments[3].dtype)


def greedy_bonus(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The token behind accepted drafts is the likeliest one."""

    def greedy(self: Sampler, logits: Tensor, *arguments: Any, **named: Any) -> Any:
        best = logits.argmax(dim=-1, keepdim=True)
        found = forward(self, logits, *arguments, **named)
        if named.get("predict_bonus_token"):
            found.sampled_token_ids = best.to(found.sampled_token_ids.dtype)
        return found

    return greedy


# Name -> (what is replaced, by what).
FAULTS = {
    "as_shipped": (rejection_sampler, "expand_batch_to_tokens", lambda _: SHIPPED),
    "accept_all": (rejection_sampler, "generate_uniform_probs", accept_all),
    "resample_all": (rejection_sampler, "sample_recovered_tokens", resample_all),
    "greedy_bonus": (Sampler, "forward", greedy_bonus),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The engine with one fault while the block runs."""
    if name not in FAULTS:
        yield
        return
    owner, attribute, fault = FAULTS[name]
    right = getattr(owner, attribute)
    setattr(owner, attribute, fault(right))
    try:
        yield
    finally:
        setattr(owner, attribute, right)


def engine(job: dict[str, Any], drafting: bool) -> LLM:
    """The verifier, alone or drafting for itself."""
    speculation = {"method": "draft_model", "model": job["verifier"], "num_speculative_tokens": job["draft_tokens"]}
    more = {"speculative_config": speculation, "per_request_spec_decode_metrics": "detailed"} if drafting else {}
    return LLM(
        model=job["verifier"], dtype="float32", max_model_len=128, max_num_batched_tokens=4096, max_num_seqs=64,
        num_gpu_blocks_override=1024, enforce_eager=True, enable_prefix_caching=False, **more,
    )  # fmt: skip


def sample(llm: LLM, job: dict[str, Any], name: str) -> None:
    """Write `<name>.jsonl`."""
    asked = [(i, n) for i in range(len(job["prompts"])) for n in range(job["samples"])]
    first = 100_000 * (1 + ["none", "right", *FAULTS].index(name))
    settings = [
        SamplingParams(
            temperature=job["temperature"], max_tokens=job["max_tokens"], ignore_eos=True, detokenize=False,
            seed=first + number,
        )
        for number in range(len(asked))
    ]  # fmt: skip
    with planted(name):
        done = llm.generate([{"prompt_token_ids": job["prompts"][i]} for i, _ in asked], settings, use_tqdm=False)
    rows = []
    for (i, _), reply in zip(asked, done, strict=True):
        told = reply.outputs[0].spec_decode_metrics
        spec = told and {"accepted_per_step": told.per_step_accepted, "drafted_per_step": told.per_step_drafted}
        rows.append({"id": str(i), "prompt_token_ids": job["prompts"][i], "token_ids": list(reply.outputs[0].token_ids),
                     "likeliest": [], "spec": spec})  # fmt: skip
    write_jsonl(Path(f"{name}.jsonl"), rows)


def main(job: dict[str, Any]) -> None:
    """One engine without drafting, then one with it for all others."""
    sample(engine(job, drafting=False), job, "none")
    drafting = engine(job, drafting=True)
    for name in ("right", *FAULTS):
        sample(drafting, job, name)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
