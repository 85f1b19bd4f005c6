"""Result files in, report and gates out."""

from pathlib import Path


rule settings:
    output:
        "results/{target}/settings.json",
    log:
        "logs/{target}/settings.log",
    benchmark:
        "results/{target}/benchmarks/settings.tsv"
    localrule: True
    resources:
        timed=SHARED,
        mem_mb=500,
        disk_mb=1,
        runtime=5,
    params:
        settings=settings_for(slices.whole),
    shell:
        "printf '%s' {params.settings:q} | python -m json.tool - {output:q} 2>{log:q}"


# The report itself is not declared: it is written when a gate is missed too, and Snakemake would delete it then.
rule report:
    input:
        measured=reported_files,
        settings="results/{target}/settings.json",
        sources="results/{target}/prompts/sources.json",
        # The figures for other verifiers tell the order of size.
        published=sorted(
            str(path) for path in Path("reproductions").glob("*/published.yaml")
        ),
    output:
        touch("results/{target}/report/gates_met"),
    log:
        "logs/{target}/report.log",
    benchmark:
        "results/{target}/benchmarks/report.tsv"
    resources:
        timed=SHARED,
        mem_mb=4000,
        disk_mb=100,
        runtime=30,
    params:
        code=code_of("reports.__main__"),
        name=lambda wildcards: RUNS[wildcards.target].name,
    shell:
        """
        python -m reports --results results/{wildcards.target} --reproduction {params.name} \
            --out results/{wildcards.target}/report >{log:q} 2>&1
        """
