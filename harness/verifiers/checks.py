"""Proves that a verifier folder answers as it should: known prompt, known greedy answer, finite logits, through transformers.

Called by `prepare.py`. Greedy replies of small models hang on near ties, so the top-2 margin of every checked token is kept too:
a check whose margin is small would fail for reasons that are no fault.
"""

from pathlib import Path
from typing import Any

from harness.config import VerifierCheck
from harness.errors import UserError

FLOAT32_PARAMETERS_MAX = 2_000_000_000  # a larger model is checked in its own dtype only: float32 would double its memory


def run_checks(folder: Path, checks: list[VerifierCheck]) -> list[dict[str, Any]]:
    """One record per check: prompt, answer, reply and the least top-2 margin (nats) over the answer's tokens, by dtype.

    Raises:
        UserError: a reply does not start with the answer, or a logit is not finite.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    records: list[dict[str, Any]] = [{"prompt": c.prompt, "answer": c.answer, "replies": {}, "margin_min_nats": {}} for c in checks]
    dtypes = [torch.bfloat16] + [torch.float32] * (model.num_parameters() <= FLOAT32_PARAMETERS_MAX)
    for dtype in dtypes:
        model = model.to(dtype)
        name = str(dtype).removeprefix("torch.")
        for check, record in zip(checks, records, strict=True):
            reply, margins_nats = greedy_reply(model, tokenizer, check.prompt, len(tokenizer(check.answer).input_ids) + 2)
            covering = answer_tokens(tokenizer, reply, check.answer)
            if covering is None:
                said = tokenizer.decode(reply, skip_special_tokens=True)
                raise UserError(
                    f"{folder}: verifier_checks: {check.prompt!r} gave {said!r} in {name}, not {check.answer!r}. "
                    f"Fix: correct the check, or delete {folder} if its weights may be damaged"
                )
            record["replies"][name] = tokenizer.decode(reply, skip_special_tokens=True)
            record["margin_min_nats"][name] = round(min(margins_nats[:covering]), 3)
    return records


def greedy_reply(model: Any, tokenizer: Any, prompt: str, max_new_tokens: int) -> tuple[list[int], list[float]]:
    """Greedy reply token ids to one user turn, and the top-2 margin in nats at each.

    Raises:
        UserError: a logit is not finite.
    """
    import torch

    messages = [{"role": "user", "content": prompt}]
    prompt_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    inputs = torch.tensor([prompt_ids], device=model.device)
    done = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=max_new_tokens,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    logits_NV = torch.cat(done.logits).float()
    if not logits_NV.isfinite().all():
        raise UserError(f"{tokenizer.name_or_path}: logits are not finite for {prompt!r}. Fix: delete the folder and make it again")
    top_N2 = logits_NV.topk(2).values
    return done.sequences[0, len(prompt_ids) :].tolist(), (top_N2[:, 0] - top_N2[:, 1]).tolist()


def answer_tokens(tokenizer: Any, reply: list[int], answer: str) -> int | None:
    """How many first tokens of `reply` it takes to say `answer`; None if the reply does not start with it."""
    for count in range(1, len(reply) + 1):
        said = tokenizer.decode(reply[:count], skip_special_tokens=True)
        if said.startswith(answer):
            return count
    return None
