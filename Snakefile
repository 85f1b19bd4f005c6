"""Targets: `reproduce_<name>` for every folder under reproductions/, with `_smoke` or `_mini` where it has that section;
`plan_<name>` says what it takes; `gate_<name>` judges that run against its committed baseline, `gate` every run that
has one; `nightly` runs every miniature.

Run from the repository root, for example `snakemake --cores all reproduce_smollm2_135m`. The steps are in harness/rules/;
profiles/default/ is read by itself. Without a target it prints the targets.
"""

from snakemake.utils import min_version

min_version("9.0")


include: "harness/rules/common.smk"


wildcard_constraints:
    target="|".join(RUNS),
    model="|".join(sorted({run.model for run in RUNS.values()})),
    algorithm="|".join(algorithms.NAMES),
    variant="|".join(sorted({name for run in RUNS.values() for name in run.variants})),


rule help:
    log:
        "logs/help.log",
    params:
        text="\n  ".join(
            [
                "targets:",
                *(
                    f"reproduce_{target}, plan_{target}, gate_{target}"
                    for target in RUNS
                ),
                "gate, nightly",
            ]
        ),
    shell:
        "printf '%s\\n' {params.text:q} | tee {log:q}"


include: "harness/rules/prepare.smk"
include: "harness/rules/train.smk"
include: "harness/rules/measure.smk"
include: "harness/rules/quantise.smk"
include: "harness/rules/report.smk"
include: "harness/rules/gate.smk"
include: "harness/rules/targets.smk"


onstart:
    refuse_what_cannot_run()


onsuccess:
    sys.stderr.writelines(f"{line}\n" for line in reports_of(sys.argv))


onerror:
    print(advice_on_failure(log, sys.argv), file=sys.stderr)
