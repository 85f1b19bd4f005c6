"""One pass (replies with their states) against two (replies, then states of prompt and reply), same prompts, one run.

    python -m benchmarks.capture_one_pass --verifier models/smollm2_135m --prompts PROMPTS.jsonl [--rows 128]

Each part is a process of its own, as in real use, and they run one after another: one pass, replies, states by vLLM's
own `extract_hidden_states` (the way of upstream speculators, without the HTTP between the two, which would only slow
it), states by our tap (the best that two passes could do with our means), one pass again. The two runs of one pass are
averaged, so that a drift of the machine's speed does not favour a side. Both sides leave their states on disk.
Work is measured without the engine's start; the start is shown and the ratio is given with and without it.
Exit code 1 when one pass is less than 1.5 times as fast as vLLM's two, starts included.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import run_command
from harness.serving.environment import ensure_environment, is_cpu_build

RATIO_MIN = 1.5
PARTS = ("one pass", "replies", "states by vLLM", "states by tap")
ORDER = ("one pass", "replies", "states by vLLM", "states by tap", "one pass")
AUX_LAYERS = (2, 15, 27)
WINDOW = 1024


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture_one_pass", description=__doc__.split("\n")[0])
    parser.add_argument("--verifier", type=Path, default=Path("models/smollm2_135m"))
    parser.add_argument("--prompts", type=Path, default=Path("results/smollm2_135m/prompts/train.jsonl"))
    parser.add_argument("--rows", type=int, default=128, help="use this many prompts, evenly spread over the file")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--layers", type=int, nargs="+", default=list(AUX_LAYERS), help="auxiliary layers")
    parser.add_argument("--out", type=Path, help="also write the figures to this file as JSON")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


class Part:
    """One process's share: prompts, an engine, and two clocks."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from harness.capture.engine import EngineSize, Prompt, cache_bytes
        from harness.data.chat import load_tokenizer, prompt_token_ids
        from harness.files import read_jsonl
        from harness.sections.data import Reply
        from harness.verifiers.weights import verifier_config

        self.arguments, self.config = arguments, verifier_config(arguments.verifier)
        rows, tokenizer = read_jsonl(arguments.prompts), load_tokenizer(arguments.verifier)
        rows = rows[:: max(1, len(rows) // arguments.rows)][: arguments.rows]
        self.prompts = [Prompt(row["id"], prompt_token_ids(tokenizer, row["messages"])) for row in rows]
        self.reply = Reply(max_new_tokens=arguments.max_new_tokens)
        self.layer_ids = [*arguments.layers, self.config["num_hidden_layers"]]
        longest = max(len(prompt.token_ids) for prompt in self.prompts)
        self.size = EngineSize(longest, longest + arguments.max_new_tokens + 1, arguments.max_num_seqs)
        self.cache = cache_bytes(self.config, self.size, 2)
        self.seconds: dict[str, float] = {}

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Keep the wall time of the block."""
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started

    def engine(self, layer_ids: list[int]) -> Any:
        """The project's engine, with or without the tap, warmed by one token."""
        from harness.capture.engine import Engine
        from harness.sections.data import Reply

        with self.clock("start"):
            made = Engine(self.arguments.verifier, "bfloat16", self.size, WINDOW, self.cache, layer_ids)
            list(made.write(self.prompts[:1], Reply(max_new_tokens=1), 0))
        return made

    @property
    def replies_file(self) -> Path:
        """Where the replies' pass leaves them for the states' passes."""
        return self.arguments.work / "replies.json"

    def dialogues(self) -> list[Any]:
        """Prompt and reply together, as prompts; the final token never was an input, so it is left out."""
        from harness.capture.engine import Prompt

        replies = json.loads(self.replies_file.read_text())
        return [Prompt(prompt.id, (prompt.token_ids + replies[prompt.id])[:-1]) for prompt in self.prompts]


def _write_store(part: Part, written: list[Any], name: str) -> None:
    from harness.capture.run import document_of
    from harness.capture.store import write_shard

    facts = {"state_shape": [len(part.layer_ids), part.config["hidden_size"]], "dtype": "bfloat16"}
    write_shard(part.arguments.work / name, 0, [document_of(each) for each in written], facts)


def one_pass(part: Part) -> dict[str, Any]:
    """Replies and states together, into a shard."""
    engine = part.engine(part.layer_ids)
    with part.clock("work"):
        written = list(engine.write(part.prompts, part.reply, 0))
        _write_store(part, written, "one")
    prompt_tokens = sum(len(prompt.token_ids) for prompt in part.prompts)
    return {"prompt_tokens": prompt_tokens, "reply_tokens": sum(len(each.token_ids) for each in written)}


def replies(part: Part) -> dict[str, Any]:
    """First of two passes: the replies alone, by an engine that keeps no states."""
    engine = part.engine([])
    with part.clock("work"):
        written = {each.prompt.id: each.token_ids for each in engine.write(part.prompts, part.reply, 0)}
        part.replies_file.write_text(json.dumps(written))
    return {"reply_tokens": sum(map(len, written.values()))}


def states_by_tap(part: Part) -> dict[str, Any]:
    """Second of two passes: one forward pass over prompt and reply, states by the tap, into a shard."""
    from harness.sections.data import Reply

    engine, dialogues = part.engine(part.layer_ids), part.dialogues()
    with part.clock("work"):
        written = list(engine.write(dialogues, Reply(max_new_tokens=1), 0))
        _write_store(part, written, "two")
    return {"positions": sum(len(dialogue.token_ids) for dialogue in dialogues)}


def states_by_vllm(part: Part) -> dict[str, Any]:
    """Second of two passes: vLLM's `extract_hidden_states` over prompt and reply, one file per request."""
    from vllm import LLM, SamplingParams
    from vllm.config.kv_transfer import KVTransferConfig

    folder, dialogues = part.arguments.work / "files", part.dialogues()
    module = {"kv_connector": "FileConnector", "kv_connector_module_path": "harness.capture.file_connector"}
    stock = {"kv_connector": "ExampleHiddenStatesConnector"}
    layers = {"hf_config": {"eagle_aux_hidden_state_layer_ids": part.layer_ids}}
    parameters = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
    with part.clock("start"):
        engine = LLM(
            model=str(part.arguments.verifier), dtype="bfloat16", max_model_len=WINDOW, enforce_eager=True,
            max_num_seqs=part.size.max_num_seqs, max_num_batched_tokens=2048, enable_prefix_caching=False,
            enable_chunked_prefill=False, disable_log_stats=True,
            kv_cache_memory_bytes=4 * 2**30 if is_cpu_build() else None,
            speculative_config={
                "method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": layers,
            },
            kv_transfer_config=KVTransferConfig(
                **(module if is_cpu_build() else stock), kv_role="kv_producer",
                kv_connector_extra_config={"shared_storage_path": str(folder)},
            ),
        )  # fmt: skip
        engine.generate([{"prompt_token_ids": dialogues[0].token_ids}], parameters, use_tqdm=False)
    with part.clock("work"):
        tokens = [{"prompt_token_ids": dialogue.token_ids} for dialogue in dialogues]
        outputs = engine.generate(tokens, parameters, use_tqdm=False)
        # The last requests' files are written one engine step later.
        engine.generate(tokens[:1], parameters, use_tqdm=False)
    written = [Path(output.kv_transfer_params["hidden_states_path"]).is_file() for output in outputs]
    if not all(written):
        raise RuntimeError(f"{written.count(False)} of {len(written)} files are missing")
    return {"positions": sum(len(dialogue.token_ids) for dialogue in dialogues)}


RUN = {"one pass": one_pass, "replies": replies, "states by vLLM": states_by_vllm, "states by tap": states_by_tap}


def _run_part(name: str, work: Path) -> dict[str, Any]:
    result = work / "result.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.capture_one_pass", *sys.argv[1:], "--part", name, "--work", str(work)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    figures = json.loads(result.read_text())
    print(
        f"{name:15} start {figures['start_s']:6.1f} s   work {figures['work_s']:6.1f} s   {figures['counts']}",
        flush=True,
    )
    return figures


def _summary(parts: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    def mean(name: str, key: str) -> float:
        found = [figures[key] for part, figures in parts if part == name]
        return sum(found) / len(found)

    def ratio(states: str, *keys: str) -> float:
        one = sum(mean("one pass", key) for key in keys)
        return sum(mean(part, key) for part in ("replies", states) for key in keys) / one

    names = {"vllm": "states by vLLM", "tap": "states by tap"}
    ratios = {f"two_passes_{short}": ratio(name, "work_s") for short, name in names.items()}
    ratios |= {f"two_passes_{short}_with_start": ratio(name, "work_s", "start_s") for short, name in names.items()}
    tokens = next(figures["counts"]["reply_tokens"] for part, figures in parts if part == "one pass")
    speed = {
        "one_pass_tokens_per_s": tokens / mean("one pass", "work_s"),
        "replies_tokens_per_s": tokens / mean("replies", "work_s"),
    }
    return {"ratios": ratios, **speed}


def main() -> int:
    arguments = _arguments()
    ensure_environment()
    if arguments.part:
        part = Part(arguments)
        counts = RUN[arguments.part](part)
        figures = {"start_s": part.seconds["start"], "work_s": part.seconds["work"], "counts": counts}
        (arguments.work / "result.json").write_text(json.dumps(figures))
        return 0
    work = Path(tempfile.mkdtemp(prefix="capture_one_pass_"))
    try:
        parts = [(name, _run_part(name, work)) for name in ORDER]
    finally:
        shutil.rmtree(work)
    summary = _summary(parts)
    for side in ("one_pass", "replies"):
        print(f"{side}: {summary[side + '_tokens_per_s']:.0f} reply tokens/s")
    for name, value in summary["ratios"].items():
        print(f"one pass is {value:.2f} times as fast as {name}")
    if arguments.out:
        from harness.files import write_json
        from harness.provenance import collect

        settings = {key: str(value) for key, value in vars(arguments).items()}
        content = {
            "parts": parts,
            **summary,
            "load_average": os.getloadavg(),
            "provenance": collect(settings, 0, "full"),
        }
        write_json(arguments.out, content)
    return int(summary["ratios"]["two_passes_vllm_with_start"] < RATIO_MIN)


if __name__ == "__main__":
    run_command(main)
