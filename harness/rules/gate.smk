"""Runs against their committed baselines: `gate` for all that have one, `gate_<target>` for one. See docs/gate.md."""

from pathlib import Path


rule gate:
    input:
        [
            f"results/{target}/gate/passed"
            for target in RUNS
            if Path(baseline_of(target)).exists()
        ],


for target in RUNS:

    rule:
        name:
            f"gate_{target}"
        input:
            f"results/{target}/gate/passed",


# The pages are not declared: they are written when the run got worse too, and Snakemake would delete them then.
rule judge:
    input:
        measured=reported_files,
        settings="results/{target}/settings.json",
        sources="results/{target}/prompts/sources.json",
        published=lambda wildcards: f"reproductions/{RUNS[wildcards.target].name}/published.yaml",
        baseline=lambda wildcards: baseline_of(wildcards.target),
    output:
        touch("results/{target}/gate/passed"),
    log:
        "logs/{target}/gate.log",
    benchmark:
        "results/{target}/benchmarks/gate.tsv"
    resources:
        timed=SHARED,
        mem_mb=4000,
        disk_mb=10,
        runtime=30,
    params:
        code=code_of("reports.gate"),
    shell:
        """
        python -m reports.gate results/{wildcards.target} --baseline {input.baseline:q} \
            --markdown results/{wildcards.target}/gate/gate.md \
            --junit results/{wildcards.target}/gate/junit.xml >{log:q} 2>&1
        """
