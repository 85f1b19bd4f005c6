"""Lets vLLM's own classes read drafts' configs, as `vllm serve` does before it loads any weight.

Run by `test_vllm_configs` as `python -m tests.interop.read_configs JOB.json` in the folder that the drafts' relative
verifier names start from. The job: {"drafts": [folder, ...], "by_hand": [[verifier, folder, tokens], ...]}. Prints one
JSON object: for each draft what the engine's config became; for each drawn by hand, the method that it chose by itself.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}

from vllm.engine.arg_utils import EngineArgs
from vllm.transformers_utils.config import maybe_override_with_speculators
from vllm.transformers_utils.configs.speculators import SpeculatorsConfig

from harness.serving import cpu_support


def engine_config(model: str, speculative: dict[str, Any] | None = None) -> Any:
    """The whole configuration of an engine for `model`, a draft or a verifier."""
    arguments = EngineArgs(
        model=model, speculative_config=speculative, max_model_len=256, dtype="float32", enforce_eager=True
    )
    return arguments.create_engine_config()


def read(draft: str) -> dict[str, Any]:
    """What `vllm serve <draft>` makes of the file."""
    model, tokenizer, speculative = maybe_override_with_speculators(draft, None, trust_remote_code=False)
    parsed = SpeculatorsConfig.from_pretrained(draft).to_dict()
    config = engine_config(draft)
    spec = config.speculative_config
    return {
        "model": model,
        "tokenizer": tokenizer,
        "speculative": speculative,
        "parsed": {key: value for key, value in parsed.items() if isinstance(value, (int, str, bool, list, dict))},
        "served_model": config.model_config.model,
        "method": spec.method,
        "tokens": spec.num_speculative_tokens,
        "parallel": bool(spec.parallel_drafting),
        "draft": spec.draft_model_config.model,
        "architectures": spec.draft_model_config.hf_config.architectures,
    }


def chosen(verifier: str, draft: str, tokens: int) -> str:
    """The method that the engine reads from the path alone."""
    try:
        return engine_config(verifier, {"model": draft, "num_speculative_tokens": tokens}).speculative_config.method
    except ValueError as error:
        return f"refused: {error}"


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text())
    cpu_support.install(second_runner=job["second_runner"])
    said = {"drafts": {draft: read(draft) for draft in job["drafts"]}}
    said["by_hand"] = {entry[1]: chosen(*entry) for entry in job["by_hand"]}
    print("\n" + json.dumps(said))
