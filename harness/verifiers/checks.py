"""Proves through transformers that a verifier answers as it should: known prompt, known greedy answer, finite logits.

Called by `prepare.py`. Greedy replies of small models hang on near ties, so the least top-2 margin of the checked
tokens is kept too: a check whose margin is small would fail for reasons that are no fault.
"""

from pathlib import Path
from typing import Any

from harness.data.chat import prompt_token_ids
from harness.errors import UserError
from harness.sections.verifier import VerifierCheck

FLOAT32_PARAMETERS_MAX = (
    2_000_000_000  # a larger model is checked in its own dtype only: float32 would double its memory
)


def run_checks(folder: Path, name: str, checks: list[VerifierCheck]) -> list[dict[str, Any]]:
    """One record per check: prompt, answer, and by dtype the reply and the least top-2 margin (nats) over the answer.

    Raises:
        UserError: a reply does not start with the answer, or a logit is not finite.
    """
    if not checks:
        return []
    import torch
    from transformers import AutoTokenizer

    from harness.verifiers.asking import load_reference

    tokenizer = AutoTokenizer.from_pretrained(folder)
    records: list[dict[str, Any]] = [check.model_dump() | {"replies": {}, "margin_min_nats": {}} for check in checks]
    for dtype in (torch.bfloat16, torch.float32):
        model = load_reference(folder, dtype)
        kind = str(dtype).removeprefix("torch.")
        for record in records:
            reply, margin_nats = _checked_reply(
                model, tokenizer, record["prompt"], record["answer"], f"{name} in {kind}"
            )
            record["replies"][kind], record["margin_min_nats"][kind] = reply, margin_nats
        if model.num_parameters() > FLOAT32_PARAMETERS_MAX:
            break
    return records


def _checked_reply(model: Any, tokenizer: Any, prompt: str, answer: str, name: str) -> tuple[str, float]:
    """The start of the greedy reply and the least top-2 margin over the tokens that say `answer`."""
    reply, logits_NV = greedy_reply(model, tokenizer, prompt, len(tokenizer(answer).input_ids) + 2)
    if not logits_NV.isfinite().all():
        raise UserError(f"verifier {name}: logits are not finite for {prompt!r}. Fix: get the weights again")
    said = tokenizer.decode(reply, skip_special_tokens=True)
    covering = answer_tokens(tokenizer, reply, answer)
    if covering is None:
        raise UserError(
            f"verifier {name}: {prompt!r} gave {said!r}, not {answer!r}. "
            "Fix: correct verifier_checks, or the source if its weights may be damaged"
        )
    top_N2 = logits_NV[:covering].topk(2).values
    return said, round((top_N2[:, 0] - top_N2[:, 1]).min().item(), 3)


def greedy_reply(model: Any, tokenizer: Any, prompt: str, max_new_tokens: int) -> tuple[list[int], Any]:
    """Greedy reply token ids to one user turn, and the float32 logits [N, V] that each was taken from."""
    import torch

    prompt_ids = prompt_token_ids(tokenizer, [{"role": "user", "content": prompt}])
    inputs = torch.tensor([prompt_ids], device=model.device)
    done = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return done.sequences[0, len(prompt_ids) :].tolist(), torch.cat(done.logits).float()


def answer_tokens(tokenizer: Any, reply: list[int], answer: str) -> int | None:
    """How many first tokens of `reply` it takes to say `answer`; None if the reply does not start with it."""
    for count in range(1, len(reply) + 1):
        said = tokenizer.decode(reply[:count], skip_special_tokens=True)
        if said.startswith(answer):
            return count
    return None
