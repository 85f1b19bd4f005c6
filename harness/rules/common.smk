"""What the rules share: the reproductions, read and checked before any job, and functions of wildcards."""

import os
import sys

import algorithms
from harness import runlock, slices
from harness.config import load_all
from harness.errors import USER_ERROR_EXIT_CODE, UserError
from harness.orphans import RUN_PID
from harness.codeversion import versions
from harness.planning import planned_disk_mb, planned_minutes
from harness.preflight import require
from harness.serving.environment import is_cpu_build
from harness.workflow import (
    advice_on_failure,
    asked_targets,
    check_targets,
    own_python_first,
    reports_of,
)

own_python_first()
os.environ[RUN_PID] = str(os.getpid())

# A step whose speed is measured, or that fills the cores anyway, has the machine alone. The profile has 2 of `timed`.
ALONE = 2
# Steps that read results and think: two of them may share the machine, but with no step of the first kind.
SHARED = 1
# First what makes drafts, then every server one after another, then the thinking: variants are timed close to each
# other, and no core is idle beside a single comparison.
FIRST, THEN = 2, 1

try:
    if config:
        raise UserError(
            f"--config {sorted(config)[0]}: is read by no step. Fix: set it in reproductions/<name>/reproduction.yaml"
        )
    RUNS = load_all()
except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(USER_ERROR_EXIT_CODE)


def refuse_unknown_targets():
    """End before the DAG is built, where Snakemake would name no target; its own jobs ask for none."""
    try:
        if workflow.is_main_process:
            check_targets(
                asked_targets(sys.argv), [rule.name for rule in workflow.rules]
            )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR_EXIT_CODE)


def refuse_what_cannot_run():
    """End the run before its first job where a killed run left jobs that would write what it writes, or where this
    machine is too small for one of its targets; a cluster's nodes are not looked at from here: its scheduler says what
    none of them has."""
    here = workflow.local_exec
    jobs = [job for job in workflow.dag.needrun_jobs() if "gpu" in job.rule.resources]
    try:
        runlock.begin(None if here else workflow.executor_plugin.name)
        for target in sorted({job.wildcards.target for job in jobs if here}):
            require(RUNS[target])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR_EXIT_CODE)


def settings_for(step, *names):
    """The settings of a step as JSON, cut from the reproduction; `names`: further wildcards that the cut depends on."""

    def cut(wildcards):
        run = RUNS[wildcards.get("target") or wildcards.model]
        return slices.as_json(step(run, *(wildcards[name] for name in names)))

    return cut


def code_of(*modules):
    """Versions of the code that a step runs; `{algorithm}` in a name is filled in."""

    def look(wildcards):
        return versions(*(module.format(**wildcards) for module in modules))

    return look


def training_code(wildcards):
    """Versions of the code of a training, and of the engine's where it gives the states meanwhile."""
    live = RUNS[wildcards.target].capture.live
    modules = ["harness.training.__main__", "algorithms.{algorithm}.algorithm"]
    return code_of(*modules, *(["harness.capture.producer"] if live else []))(wildcards)


def needs(field, factor=1):
    """A resource that the reproduction states in its section `needs`."""

    def amount(wildcards):
        run = RUNS[wildcards.get("target") or wildcards.model]
        return int(getattr(run.needs, field) * factor)

    return amount


def all_cores(wildcards):
    """All of the machine; of a cluster, what the reproduction asks for."""
    on_cluster = workflow.resource_settings.nodes is not None
    return needs("cores")(wildcards) if on_cluster else workflow.cores


def half_of_cores(wildcards):
    return max(1, all_cores(wildcards) // 2)


def minutes(step, least, *names):
    """Time limit of a step: twice what is planned, and at least `least`."""

    def amount(wildcards):
        run = RUNS[wildcards.get("target") or wildcards.model]
        return planned_minutes(run, step, least, *(wildcards[name] for name in names))

    return amount


def training_processes(wildcards):
    return RUNS[wildcards.target].training.processes


def engine_gpus(wildcards):
    """GPUs that hold the verifier together; vLLM's CUDA build takes some though the recipe could do without."""
    run = RUNS[wildcards.target]
    return (
        0 if is_cpu_build() and not run.needs.gpus else run.serve.tensor_parallel_size
    )


def one_gpu(wildcards):
    return min(1, engine_gpus(wildcards))


def training_gpus(wildcards):
    """One for each process, and those of the engine where it gives the states meanwhile."""
    live = RUNS[wildcards.target].capture.live
    own = one_gpu(wildcards) * training_processes(wildcards)
    return own + (engine_gpus(wildcards) if live else 0)


def capture_jobs(wildcards):
    """The parts of a capture that is cut into jobs."""
    jobs = RUNS[wildcards.target].capture.jobs
    folder = f"results/{wildcards.target}/capture"
    return [f"{folder}/job_{job}/job.json" for job in range(jobs)] if jobs > 1 else []


def disk_mb(step, *names):
    """Disk that a step fills."""

    def amount(wildcards):
        run = RUNS[wildcards.get("target") or wildcards.model]
        most = int(run.needs.disk_gb * 1000)
        return planned_disk_mb(run, step, most, *(wildcards[name] for name in names))

    return amount


def quantised_folder(run):
    return f"models/{run.model}_{run.quantised.scheme}"


def verifier_folder(wildcards):
    """The verifier, or for a variant of that name its form in 8 bits."""
    run = RUNS[wildcards.target]
    if wildcards.get("variant") in run.quantised_variants:
        return quantised_folder(run)
    return f"models/{run.model}"


def verifier_record(wildcards):
    return f"{verifier_folder(wildcards)}/verifier.json"


def served_folder(wildcards):
    """What is served for a variant: the draft of an algorithm, the verifier itself for the others."""
    results = f"results/{wildcards.target}"
    if wildcards.variant in algorithms.NAMES:
        return f"{results}/drafts/{wildcards.variant}"
    if plain_name(wildcards) in algorithms.NAMES:
        return f"{results}/quantised/{wildcards.variant}"
    return verifier_folder(wildcards)


def plain_name(wildcards):
    """The variant's name without its quantisation."""
    variants = RUNS[wildcards.target].quantised_variants
    return variants.get(wildcards.variant, wildcards.variant)


def served_files(wildcards):
    """What a variant waits for beside the verifier: its draft, and that the draft passed the lint."""
    if plain_name(wildcards) not in algorithms.NAMES:
        return []
    results = f"results/{wildcards.target}"
    return [
        f"{served_folder(wildcards)}/model.safetensors",
        f"{results}/lint/{plain_name(wildcards)}.json",
    ]


def base_replies(wildcards):
    """Replies of the same verifier without drafting."""
    base = RUNS[wildcards.target].base_of(wildcards.variant)
    return f"results/{wildcards.target}/measured/{base}/replies.jsonl"


def swept_files(wildcards):
    """The draft at further lengths, where the reproduction lists some."""
    run = RUNS[wildcards.target]
    lengths = run.evaluate.speed.draft_tokens[wildcards.variant]
    own = run.algorithms[wildcards.variant]["speculative_tokens"]
    return [
        f"results/{wildcards.target}/sweep/{wildcards.variant}/k{k}.json"
        for k in lengths
        if k != own
    ]


def start_files(wildcards):
    """The checkpoint that a training goes on from, if it does."""
    folder = RUNS[wildcards.target].algorithms[wildcards.algorithm].get("init_from")
    return [f"{folder}/config.json", f"{folder}/model.safetensors"] if folder else []


def reported_files(wildcards):
    """Everything that the report reads."""
    run, results = RUNS[wildcards.target], f"results/{wildcards.target}"
    measured = [
        "server.json",
        "replies.jsonl",
        "acceptance.json",
        "samples.jsonl",
        "accuracy.json",
        "latency.json",
    ]
    return [
        *(
            f"{results}/measured/{variant}/{name}"
            for variant in run.variants
            for name in measured
        ),
        *(
            f"{results}/match/{variant}.json"
            for variant in run.variants
            if run.base_of(variant) != variant
        ),
        *(
            f"{results}/lossless/{variant}.json"
            for variant in run.variants
            if variant != "none" and variant not in run.quantised_variants
        ),
        *(f"{results}/parity/{algorithm}.json" for algorithm in run.algorithms),
        *(
            f"{results}/speed/{variant}.json"
            for variant in (
                run.evaluate.speed.draft_tokens if run.evaluate.speed else []
            )
        ),
        *(
            f"{results}/training/{algorithm}/summary.json"
            for algorithm in run.algorithms
        ),
    ]


def baseline_of(target):
    return f"reports/published/{target}.baseline.json"
