"""Lets vLLM's own classes read drafts' configs, as `vllm serve` does before it loads any weight.

Run by `test_vllm_configs` as `python -m tests.interop.read_configs JOB.json` in the folder that the drafts' relative
verifier names start from. The job: {"drafts": {folder: runner}, "by_hand": [[verifier, folder, tokens], ...]}, runners
as of `algorithms.engine_runner`. Prints one JSON object: for each draft what the engine's config became; for each that
is passed by hand, the method that the engine chose by itself.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}

from harness.serving import cpu_support

cpu_support.install(second_runner=True)  # before vLLM is imported: it says there what it can serve

import vllm.model_executor.models.registry as registry  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.transformers_utils.config import maybe_override_with_speculators  # noqa: E402
from vllm.transformers_utils.configs.speculators import SpeculatorsConfig  # noqa: E402

# Else it starts a process for each class to look at.
registry._run_in_subprocess = lambda inspect: inspect()


def engine_config(model: str, speculative: dict[str, Any] | None = None, runner: str = "any") -> Any:
    """The whole configuration of an engine for `model`, a draft or a verifier."""
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner == "second" else "0"
    arguments = EngineArgs(
        model=model, speculative_config=speculative, max_model_len=256, dtype="float32", enforce_eager=True
    )
    return arguments.create_engine_config()


def read(draft: str, runner: str) -> dict[str, Any]:
    """What `vllm serve <draft>` makes of the file."""
    model, tokenizer, speculative = maybe_override_with_speculators(draft, None, trust_remote_code=False)
    parsed = SpeculatorsConfig.from_pretrained(draft).to_dict()
    config = engine_config(draft, runner=runner)
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
    said = {"drafts": {draft: read(draft, runner) for draft, runner in job["drafts"].items()}}
    said["by_hand"] = {entry[1]: chosen(*entry) for entry in job["by_hand"]}
    print("\n" + json.dumps(said))
