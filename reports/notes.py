"""Under which conditions each table came about, in a paragraph. Called by `reports.page`, shown beside the tables.

Everything is read off the settings of the reproduction and the files of the run.
"""

import math

from reports.collect import BASE, Run
from reports.names import benchmark_label, listed, variant_label
from reports.rows import Results
from reports.soundness import same_prompt
from reports.wording import spread

LITTLE_POWER = 0.1  # a test that needs a larger bias to see it shows little
KINDS = {"bonus": "behind drafts that were all accepted", "plain": "where no draft stood, such as a reply's first"}


def all_notes(run: Run, results: Results) -> dict[str, str]:
    """The notes by the name of their table, `output` for the replies that differ."""
    return {
        "speed": _speed(run, results),
        "support": _support(run),
        "output": _output(run),
        "further_sampling": _sampling(run, results),
        "training": _training(run),
        "parity": _parity(run),
        "data": _data(run),
        "costs": "Wall time and peak memory of the whole step, start-up included: costs, not latencies. Snakemake "
        "samples the memory from outside and misses short peaks; a training's own count, in the table of trainings, "
        "does not. Steps may run side by side, so that their sum is no time of the run.",
    }


def _speed(run: Run, results: Results) -> str:
    settings = run.reproduction.evaluate.latency
    longest = [
        s.prompt_tokens_max for s in run.sources.sources if (s.source, s.split) == (settings.benchmark, "heldout")
    ]
    prompts = f", prompts of up to {max(longest)} tokens" if any(longest) else ""
    own = [f"{variant_label(v)} {run.acceptance[v].num_speculative_tokens}" for v in run.drafted]
    drifts = [row.value for row in results.rows if row.base == "machine_drift" and row.value is not None]
    drifted = ""
    if drifts:
        drifted = (
            f" Machine drift is the time of a fixed piece of work beside a load over that beside the base's: "
            f"{spread('speedup', min(drifts), max(drifts))}; speed-ups are widened by it, tokens per second are not."
        )
    lengths = f" Drafts are compared at their own lengths, in tokens a step: {listed(own, 'and')}." if own else ""
    return (
        f"{settings.requests} requests to {benchmark_label(settings.benchmark)} at each load after "
        f"{settings.warmup_requests} to warm up, greedy (temperature 0){prompts}, replies of up to "
        f"{settings.max_new_tokens} tokens.{lengths}{drifted}"
    )


def _support(run: Run) -> str:
    common = set.intersection(*(set(server.settings.support) for server in run.servers.values()))
    return f"All servers run it, that of {variant_label(BASE)} too." if common else "Not all servers run it."


def _output(run: Run) -> str:
    settings = run.reproduction.evaluate.acceptance
    limits = {match.near_tie_nats for match in run.match.values()} - {None, 0.0}
    told = (
        f"Replies of up to {settings.max_new_tokens} tokens at temperature 0, {settings.concurrency} requests at once."
    )
    for nats in limits:
        told += (
            f" A near tie: the verifier gives its second likeliest token at least {math.exp(-nats):.0%} of the "
            f"probability of its likeliest ({nats:g} nats)."
        )
    if limits and {server.dtype for server in run.servers.values()} == {"bfloat16"}:
        told += (
            " In bfloat16 a number between 16 and 32 stands in steps of 0.125, and a step of another number of rows "
            "adds up in another order, so that so close a choice can fall either way."
        )
    prompt = same_prompt(run)
    return f"{told} With every draft the one reply that differs is that to {prompt}." if prompt else told


def _sampling(run: Run, results: Results) -> str:
    settings = run.reproduction.evaluate.sampling
    weak: dict[str, list[float]] = {}
    for row in results.rows:
        if row.metric == "sampling_positions" and row.value is not None:
            bias = results.value(row.variant, "sampling_detectable_bias", row.benchmark)
            if bias is None or bias > LITTLE_POWER:
                weak.setdefault(row.benchmark, []).append(row.value)
    told = [
        f"{kind} tokens ({KINDS[kind]}; {min(counts):.0f}{f' to {max(counts):.0f}' if len(set(counts)) > 1 else ''})"
        for kind, counts in weak.items()
        if kind in KINDS
    ]
    few = f" Too few to show much: {listed(told, 'and')}." if told else ""
    return (
        f"{settings.prompts} prompts, {settings.samples} replies each of up to {settings.max_new_tokens} tokens, at "
        f"temperature {settings.temperature:g}, {settings.concurrency} at once.{few}"
    )


def _training(run: Run) -> str:
    settings = run.reproduction.training
    return (
        f"{settings.epochs} epoch{'' if settings.epochs == 1 else 's'}, up to {settings.tokens_per_step:,} tokens in "
        f"an optimiser step, learning rate {settings.learning_rate:g} ({settings.schedule}), {settings.optimizer}, "
        f"{settings.compute_dtype}. The memory is the peak of the training process by the kernel's own count."
    )


def _parity(run: Run) -> str:
    return (
        f"Validation: the reference loop on {run.reproduction.training.validation_share:.0%} of the training prompts, "
        "kept apart and never learnt from, all sources pooled; one figure a draft, for the order of size. Within: the "
        "interval of the gap lies inside the margin; not failed: it reaches beyond; beyond: it lies there as a whole."
    )


def _data(run: Run) -> str:
    settings = run.reproduction
    return (
        f"The verifier's replies to learn from are of up to {settings.data.reply.max_new_tokens} tokens at temperature "
        f"{settings.data.reply.temperature:g}; those to held-out prompts of up to "
        f"{settings.evaluate.acceptance.max_new_tokens} tokens for acceptance and "
        f"{settings.evaluate.accuracy.max_new_tokens} for accuracy, at temperature 0."
    )
