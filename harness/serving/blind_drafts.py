"""A drafter inside the engine that guesses without a network, and times the engine's steps: what verification costs.

vLLM makes it for the method `custom_class` (`speculative_config` below); `harness.evaluation.verification` reads its
notes. It drafts 0, 1, .. K tokens in turn, all of them nonsense, so that each step gives one token and takes as long as
the verifier needs for its rows. The time between two calls is one whole step, because the engine does not overlap steps
for drafters of this kind.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

NOTES = "SPECPROOF_BLIND_DRAFTS"
NEVER_SAID = 0  # a special token in every vocabulary we know


def speculative_config(draft_tokens: int) -> dict[str, Any]:
    """What vLLM is told; the environment variable `NOTES` must name a file."""
    return {
        "method": "custom_class",
        "model": f"{__name__}.{BlindDrafts.__name__}",
        "num_speculative_tokens": draft_tokens,
    }


class BlindDrafts:
    """Drafts nonsense of every length in turn and notes when it was asked: one JSON object a line.

    A line: `at_s`, `drafted` tokens in this step, `requests` in the batch, and whether each of them `continues` from
    the line before, so that the time between the two is that of the step which verified the line before's drafts.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.longest = vllm_config.speculative_config.num_speculative_tokens
        # Every rank of a tensor-parallel engine drafts; one of them notes.
        self.notes = Path(os.environ[NOTES]) if vllm_config.parallel_config.rank == 0 else None
        self.step = 0
        self.lengths_before: list[int] | None = None

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        """Drafts for every request of the batch, all of one length.

        Args:
            sampled_token_ids: what the step gave each request.
            num_tokens_no_spec: tokens of each request now.
            token_ids_cpu: not looked at.
            slot_mappings: not looked at.
        """
        at_s, count = time.perf_counter(), len(sampled_token_ids)
        lengths = [int(tokens) for tokens in num_tokens_no_spec[:count]]
        given = [len(tokens) for tokens in sampled_token_ids]
        before = [now - new for now, new in zip(lengths, given, strict=True)]
        drafted = self.step % (self.longest + 1)
        line = {"at_s": at_s, "drafted": drafted, "requests": count, "continues": before == self.lengths_before}
        if self.notes is not None:
            with self.notes.open("a", encoding="utf-8") as notes:
                notes.write(json.dumps(line) + "\n")
        self.step, self.lengths_before = self.step + 1, lengths
        return [[NEVER_SAID] * drafted if tokens else [] for tokens in sampled_token_ids]

    def load_model(self, *_: Any) -> None:
        """Nothing to load; vLLM's CPU runner asks every drafter to."""
