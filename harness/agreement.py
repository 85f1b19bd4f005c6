"""What one section of a reproduction names must be in another: found before any job starts.

Called by `harness.config.load_reproduction`.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from harness.sections.verifier import READS_IMAGES

if TYPE_CHECKING:
    from harness.config import Reproduction


def disagreements(run: "Reproduction") -> Iterator[str]:
    """One line for each, with both keys and the fix."""
    yield from _listed_twice(run)
    yield from _unknown_benchmarks(run)
    yield from _too_few_prompts(run)
    yield from _images_for_text_alone(run)
    yield from _unknown_variants(run)
    yield from _unknown_algorithms(run)
    yield from _speed_without_its_base(run)
    yield from _no_room(run)
    yield from _starts_from_itself(run)
    yield from _unmet_gates(run)
    yield from _does_not_fit_the_verifier(run)
    if run.gates.speedup_c1_min and 1 not in run.evaluate.latency.concurrency:
        asked = run.evaluate.latency.concurrency
        yield f"gates.speedup_c1_min: evaluate.latency.concurrency = {asked} has no 1. Fix: add it there"


def _listed_twice(run: "Reproduction") -> Iterator[str]:
    for section in ("train", "heldout"):
        names = [each.name for each in getattr(run.data, section)]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"data.{section}: {name} is listed twice. Fix: add the rows up in one entry"
    evaluate, speed = run.evaluate, run.evaluate.speed
    lists: dict[str, Sequence[object]] = {
        "training.log_to": run.training.log_to,
        "quantised.algorithms": run.quantised.algorithms if run.quantised else [],
        "evaluate.accuracy.tasks": evaluate.accuracy.tasks,
        "evaluate.output_match.sources": evaluate.output_match.sources if evaluate.output_match else [],
        "evaluate.latency.concurrency": evaluate.latency.concurrency,
        "evaluate.latency.rates": evaluate.latency.rates,
        "evaluate.speed.concurrency": speed.concurrency if speed else [],
        **{f"evaluate.speed.draft_tokens.{key}": tried for key, tried in (speed.draft_tokens if speed else {}).items()},
    }
    for where, listed in lists.items():
        for each in dict.fromkeys(each for each in listed if listed.count(each) > 1):
            yield f"{where}: {each} is listed twice. Fix: list it once"


def _unknown_benchmarks(run: "Reproduction") -> Iterator[str]:
    listed = {each.name for each in run.data.heldout}
    wanted: dict[str, Sequence[str]] = {
        "evaluate.latency.benchmark": [run.evaluate.latency.benchmark],
        "evaluate.accuracy.tasks": run.evaluate.accuracy.tasks,
        "evaluate.output_match.sources": run.evaluate.output_match.sources if run.evaluate.output_match else [],
        **{f"gates.acceptance_length_min.{key}": list(value) for key, value in run.gates.acceptance_length_min.items()},
    }
    for where, names in wanted.items():
        for name in names:
            if name not in listed:
                yield f"{where}: {name!r} is not among data.heldout. Fix: use {' or '.join(sorted(listed))}, or list it"


def _too_few_prompts(run: "Reproduction") -> Iterator[str]:
    benchmark, requests = run.evaluate.latency.benchmark, run.evaluate.latency.requests
    rows = sum(each.rows for each in run.data.heldout if each.name == benchmark)
    if rows and rows < requests:
        yield (
            f"evaluate.latency.requests = {requests}: data.heldout has {rows} rows of {benchmark}. "
            "Fix: hold out more, or send fewer"
        )


def _images_for_text_alone(run: "Reproduction") -> Iterator[str]:
    family = getattr(run.verifier, "family", None)  # of a miniature; what others read, their own files say
    for section in ("train", "heldout"):
        asked = {each.name for each in getattr(run.data, section)}
        if family not in (None, READS_IMAGES) and "image_questions" in asked:
            yield f"data.{section}: image_questions: verifier.family = {family} reads text. Fix: use {READS_IMAGES}"


def _unknown_variants(run: "Reproduction") -> Iterator[str]:
    for gate in ("acceptance_length_min", "speedup_c1_min"):
        for name in getattr(run.gates, gate):
            if name not in run.variants:
                yield f"gates.{gate}: no variant called {name!r}. Fix: use {' or '.join(run.variants)}"


def _unmet_gates(run: "Reproduction") -> Iterator[str]:
    for task in run.gates.accuracy_min:
        if task not in run.evaluate.accuracy.tasks:
            yield f"gates.accuracy_min: {task!r} is not among evaluate.accuracy.tasks. Fix: add it there"
    match, asked = run.evaluate.output_match, run.evaluate.acceptance.max_new_tokens
    if match and match.first_tokens > asked:
        yield (
            f"evaluate.output_match.first_tokens = {match.first_tokens}: replies have at most "
            f"evaluate.acceptance.max_new_tokens = {asked}. Fix: lower it"
        )


def _unknown_algorithms(run: "Reproduction") -> Iterator[str]:
    wanted = {
        "quantised.algorithms": run.quantised.algorithms if run.quantised else [],
        "evaluate.speed.draft_tokens": list(run.evaluate.speed.draft_tokens) if run.evaluate.speed else [],
    }
    for where, names in wanted.items():
        for name in names:
            if name not in run.algorithms:
                yield f"{where}: {name!r} is not among algorithms. Fix: use {' or '.join(run.algorithms)}"


def _speed_without_its_base(run: "Reproduction") -> Iterator[str]:
    """A sweep is compared with the latency check request by request, and with the steps of the measured replies."""
    speed, latency, acceptance = run.evaluate.speed, run.evaluate.latency, run.evaluate.acceptance
    if speed is None:
        return
    if other := sorted(set(speed.concurrency) - set(latency.concurrency)):
        yield f"evaluate.speed.concurrency: {other[0]} is not among evaluate.latency.concurrency. Fix: add it there"
    for key, ours, theirs in (
        ("evaluate.speed.requests", speed.requests, ("evaluate.latency.requests", latency.requests)),
        ("evaluate.latency.max_new_tokens", latency.max_new_tokens,
         ("evaluate.acceptance.max_new_tokens", acceptance.max_new_tokens)),
    ):  # fmt: skip
        if ours > theirs[1]:
            yield f"{key} = {ours}: is above {theirs[0]} = {theirs[1]}, which evaluate.speed compares. Fix: lower it"


def _no_room(run: "Reproduction") -> Iterator[str]:
    limits = {
        "data.reply": run.data.reply.max_new_tokens,
        "evaluate.acceptance": run.evaluate.acceptance.max_new_tokens,
        "evaluate.accuracy": run.evaluate.accuracy.max_new_tokens,
        "evaluate.latency": run.evaluate.latency.max_new_tokens,
        "evaluate.sampling": run.evaluate.sampling.max_new_tokens,
    }
    room = run.serve.max_model_len
    for section, tokens in limits.items():
        if tokens >= room:
            yield f"{section}.max_new_tokens = {tokens}: no room in serve.max_model_len = {room}. Fix: lower it"


def _starts_from_itself(run: "Reproduction") -> Iterator[str]:
    for name, knobs in run.algorithms.items():
        start = knobs.get("init_from")
        if start and start.rstrip("/").endswith(f"results/{run.target}/drafts/{name}"):
            yield f"algorithms.{name}.init_from = {start}: is what this training makes. Fix: name another checkpoint"


def _trains_elsewhere(run: "Reproduction") -> Iterator[str]:
    """One process a GPU; without one, as many as there are cores, and nothing compiled."""
    processes, key = run.training.processes, "gpus" if run.needs.gpus else "cores"
    if processes > (there := getattr(run.needs, key)):
        yield f"training.processes = {processes}: needs.{key} = {there}. Fix: use {there} at most"
    if run.training.compile and not run.needs.gpus:
        yield "training.compile = True: needs.gpus = 0, and it pays on a GPU only. Fix: leave it out"


def _does_not_fit_the_verifier(run: "Reproduction") -> Iterator[str]:
    """What the stated sizes of the verifier, where they are stated, do not allow."""
    parallel, gpus = run.serve.tensor_parallel_size, run.needs.gpus
    if parallel > max(gpus, 1):
        yield f"serve.tensor_parallel_size = {parallel}: needs.gpus = {gpus}. Fix: ask for {parallel} GPUs, or lower it"
    wanted = parallel + run.training.processes
    if run.capture.live and 0 < gpus < wanted:
        yield (
            f"capture.mode = {run.capture.mode}: the engine takes {parallel} GPUs beside the training's, but "
            f"needs.gpus = {gpus}. Fix: ask for {wanted} GPUs, or use mode offline"
        )
    yield from _trains_elsewhere(run)
    if run.quantised and run.quantised.scheme == "fp8" and not gpus:
        yield "quantised.scheme = fp8: needs.gpus = 0, and it is served on a GPU only. Fix: use int8"
    if run.plan is None:
        return
    size = run.plan.verifier
    if run.capture.aux_layers[-1] >= size.layers:
        ids = run.capture.aux_layers
        yield f"capture.aux_layers = {ids}: plan.verifier.layers = {size.layers}. Fix: use ids below {size.layers}"
    if size.attention_heads % parallel:
        heads = f"plan.verifier.attention_heads = {size.attention_heads}"
        yield f"serve.tensor_parallel_size = {parallel}: does not divide {heads}. Fix: use a divisor"
    for name, knobs in run.algorithms.items():
        for key in ("draft_vocab_size", "mask_token_id"):
            if (value := knobs.get(key)) is not None and value > size.vocab_size - (key == "mask_token_id"):
                told = f"plan.verifier.vocab_size = {size.vocab_size}"
                yield f"algorithms.{name}.{key} = {value}: {told}. Fix: use a smaller number"
