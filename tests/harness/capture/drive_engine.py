"""A process of its own with vLLM's engine, for `test_engine.py`: asks the batches of a job file, leaves the replies.

    python -m tests.harness.capture.drive_engine FOLDER

FOLDER/job.json: {verifier, layer_ids, max_num_seqs, blocks, max_new_tokens, workers,
batches: [[[token ids], ...], ...]}, and `images` (data URIs of each prompt, in the same order) where there are some.
Leaves FOLDER/written.safetensors (states by "<batch>-<row>") and FOLDER/written.json (tokens, finish reasons,
preemptions, live settings, and replies after the recording was stopped).
"""

import json
import sys
from pathlib import Path
from typing import Any

from harness.serving.environment import ensure_environment


def main(folder: Path) -> None:
    from safetensors.torch import save_file
    from vllm.v1.core.sched.scheduler import Scheduler

    from harness.capture.engine import CACHE_BLOCK_TOKENS, Engine, EngineSize, Prompt
    from harness.sections.data import Reply
    from harness.verifiers.weights import verifier_config

    job = json.loads((folder / "job.json").read_text())
    config = verifier_config(Path(job["verifier"]))
    heads = config["num_key_value_heads"]
    block_bytes = CACHE_BLOCK_TOKENS * 2 * config["num_hidden_layers"] * heads * config["head_dim"] * 4
    longest = max(len(tokens) for batch in job["batches"] for tokens in batch)
    size = EngineSize(longest, longest + job["max_new_tokens"], job["max_num_seqs"], job["workers"])
    engine = Engine(Path(job["verifier"]), "float32", size, 512, job["blocks"] * block_bytes, job["layer_ids"])

    preempted, preempt = [], Scheduler._preempt_request

    def counted(self: Scheduler, request: Any, *rest: Any, **named: Any) -> Any:
        preempted.append(request.request_id)
        return preempt(self, request, *rest, **named)

    Scheduler._preempt_request = counted
    states, facts = {}, {}
    for b, batch in enumerate(job["batches"]):
        images = job["images"][b] if "images" in job else [[]] * len(batch)
        prompts = [Prompt(f"{b}-{i}", tokens, tuple(images[i])) for i, tokens in enumerate(batch)]
        for written in engine.write(prompts, Reply(max_new_tokens=job["max_new_tokens"]), 0):
            states[written.prompt.id] = written.states.contiguous()
            facts[written.prompt.id] = [written.token_ids, written.finish_reason]
    save_file(states, folder / "written.safetensors")
    engine.stop_recording()
    first = [Prompt(f"alone-{i}", tokens) for i, tokens in enumerate(job["batches"][0])]
    alone = {
        written.prompt.id: [written.token_ids, list(written.states.shape)]
        for written in engine.write(first, Reply(max_new_tokens=job["max_new_tokens"]), 0)
    }
    settings = engine._engine.vllm_config
    live = {
        "prefix_caching": settings.cache_config.enable_prefix_caching,
        "chunked_prefill": settings.scheduler_config.enable_chunked_prefill,
    }
    content = {"rows": facts, "preempted": len(preempted), "live": live, "alone": alone}
    (folder / "written.json").write_text(json.dumps(content))


if __name__ == "__main__":
    ensure_environment()
    main(Path(sys.argv[1]))
