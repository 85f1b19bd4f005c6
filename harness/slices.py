"""The part of a reproduction that each command is told, as JSON: what stands here is what makes its step run again.

Called by `harness/rules/common.smk`. A setting that cannot change a step's output is kept out of its slice.
"""

import json
from pathlib import Path
from typing import Any

import algorithms
from harness.capture.settings import capture_settings
from harness.config import BASE, Reproduction
from harness.evaluation.settings import (
    Expected,
    lossless_settings,
    match_settings,
    measure_settings,
    parity_settings,
    speed_settings,
    sweep_settings,
)
from harness.sections.base import Strict
from harness.sections.data import Reply
from harness.serving.baselines import asked_for, speculative_config


def _plain(content: Any) -> Any:
    if isinstance(content, Strict):
        return content.model_dump()
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    return [_plain(each) for each in content] if isinstance(content, list) else content


def as_json(content: Any) -> str:
    """`content` (sections, dicts, lists, plain values) as one line of JSON, the same line for the same content."""
    return json.dumps(_plain(content), sort_keys=True, ensure_ascii=False)


def verifier(reproduction: Reproduction) -> dict[str, Any]:
    """For `harness.verifiers`. Smoke shares the folder of full, so that the scale says `full` for both."""
    scale = "mini" if reproduction.scale == "mini" else "full"
    size = reproduction.plan.verifier if reproduction.plan else None
    return {
        "verifier": reproduction.verifier, "checks": reproduction.verifier_checks, "size": size, "scale": scale,
    }  # fmt: skip


def data(reproduction: Reproduction) -> dict[str, Any]:
    """For `harness.data`: how the verifier replies cannot change a prompt, so that part is the same for every run."""
    prompts = reproduction.data.model_copy(update={"reply": Reply(max_new_tokens=1), "min_supervised_tokens": 1})
    return {"data": prompts, "scale": reproduction.scale}


def capture(reproduction: Reproduction) -> dict[str, Any]:
    """For `harness.capture`."""
    return capture_settings(reproduction)


def training(reproduction: Reproduction, algorithm: str) -> dict[str, Any]:
    """For `harness.training` of one algorithm: those of the others do not matter, nor does the number of GPUs."""
    knobs = algorithms.config_class(algorithm).model_validate(reproduction.algorithms[algorithm]).model_dump()
    live = capture_settings(reproduction) if reproduction.capture.live else None
    training = reproduction.training.model_copy(update={"processes": 1})
    return {"training": training, "algorithm": knobs, "live": live, "scale": reproduction.scale}


def measure(reproduction: Reproduction, variant: str) -> dict[str, Any]:
    """For `harness.evaluation measure` of one variant, with what its server must report of itself.

    What only later steps and the report read is the same for every measurement.
    """
    evaluate = reproduction.evaluate
    latency = evaluate.latency.model_copy(update={"others_cpu_share_max": 1.0, "machine_drift_max": 1.0})
    sampling = evaluate.sampling.model_copy(update={"false_alarm_rate": 0.001})
    told = {"near_tie_nats": 1.0, "output_match": None, "speed": None, "latency": latency, "sampling": sampling}
    evaluate = evaluate.model_copy(update=told)
    reproduction = reproduction.model_copy(update={"evaluate": evaluate})
    variant = reproduction.quantised_variants.get(variant, variant)
    if variant == BASE:
        return measure_settings(reproduction, Expected())
    if variant in asked_for(reproduction.baselines):
        speculative = speculative_config(variant, reproduction.baselines)
        expected = Expected(method=variant, num_speculative_tokens=speculative["num_speculative_tokens"])
        return measure_settings(reproduction, expected, speculative)
    method, tokens = algorithms.engine_method(variant), reproduction.algorithms[variant]["speculative_tokens"]
    return measure_settings(reproduction, Expected(method=method, num_speculative_tokens=tokens))


def match(reproduction: Reproduction, variant: str) -> dict[str, Any]:
    """For `harness.evaluation match` of one variant."""
    return match_settings(reproduction, variant)


def parity(reproduction: Reproduction) -> dict[str, Any]:
    """For `harness.evaluation parity`."""
    return parity_settings(reproduction)


def lossless(reproduction: Reproduction) -> dict[str, Any]:
    """For `harness.evaluation lossless`."""
    return lossless_settings(reproduction)


def sweep(reproduction: Reproduction, variant: str, draft_tokens: str) -> dict[str, Any]:
    """For `harness.evaluation sweep` of one algorithm at another draft length."""
    return sweep_settings(reproduction, algorithms.engine_method(variant), int(draft_tokens))


def verification(reproduction: Reproduction) -> dict[str, Any]:
    """For `harness.evaluation verification`, up to the longest draft that `speed` looks at."""
    speed = reproduction.evaluate.speed
    tried = speed.draft_tokens if speed else {}
    lengths = [reproduction.algorithms[name]["speculative_tokens"] for name in tried]
    return sweep_settings(reproduction, None, max([*lengths, *(k for each in tried.values() for k in each)]))


def speed(reproduction: Reproduction) -> dict[str, Any]:
    """For `harness.evaluation speed`."""
    return speed_settings(reproduction)


def whole(reproduction: Reproduction) -> dict[str, Any]:
    """Everything, defaults and the changes of the scale filled in: kept beside the results for the report.

    Of the data folder only its name: where it lies on this machine is no part of a report.
    """
    content = reproduction.model_dump()
    if content["data"]["folder"]:
        content["data"]["folder"] = Path(content["data"]["folder"]).name
    return content
