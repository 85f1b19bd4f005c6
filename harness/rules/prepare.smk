"""From nothing to replies and hidden states: verifier, prompts, capture."""


rule verifier:
    output:
        "models/{model}/verifier.json",
    log:
        "logs/{model}/verifier.log",
    benchmark:
        "results/benchmarks/verifier_{model}.tsv"
    priority: FIRST
    threads: all_cores
    resources:
        timed=ALONE,
        mem_mb=needs("memory_gb", 1000),
        disk_mb=disk_mb("verifier"),
        runtime=minutes("verifier", 30),
    params:
        code=code_of("harness.verifiers.__main__"),
        settings=settings_for(slices.verifier),
    shell:
        """
        python -m harness.verifiers --settings {params.settings:q} --out models/{wildcards.model} >{log:q} 2>&1
        """


rule prompts:
    input:
        verifier=verifier_record,
    output:
        train="results/{target}/prompts/train.jsonl",
        heldout="results/{target}/prompts/heldout.jsonl",
        sources="results/{target}/prompts/sources.json",
    log:
        "logs/{target}/prompts.log",
    benchmark:
        "results/{target}/benchmarks/prompts.tsv"
    resources:
        timed=ALONE,
        mem_mb=4000,
        disk_mb=2000,
        runtime=120,
    params:
        code=code_of("harness.data.__main__"),
        settings=settings_for(slices.data),
        verifier=verifier_folder,
    shell:
        """
        python -m harness.data --settings {params.settings:q} --verifier {params.verifier:q} \
            --out results/{wildcards.target}/prompts >{log:q} 2>&1
        """


# The shards stand beside what is declared and are not declared: Snakemake would delete finished ones before a second
# try. Where the recipe cuts the capture into jobs, each leaves its part, and `capture` only makes one store of them.
rule capture_job:
    input:
        verifier=verifier_record,
        prompts="results/{target}/prompts/train.jsonl",
    output:
        "results/{target}/capture/job_{job}/job.json",
    log:
        "logs/{target}/capture/job_{job}.log",
    benchmark:
        "results/{target}/benchmarks/capture/job_{job}.tsv"
    wildcard_constraints:
        job="[0-9]+",
    priority: FIRST
    threads: all_cores
    resources:
        timed=ALONE,
        gpu=engine_gpus,
        mem_mb=needs("memory_gb", 1000),
        disk_mb=disk_mb("capture"),
        runtime=minutes("capture", 240),
    params:
        code=code_of("harness.capture.__main__"),
        settings=settings_for(slices.capture),
        verifier=verifier_folder,
    shell:
        """
        python -m harness.gpus {resources.gpu} \
            python -m harness.capture --settings {params.settings:q} --verifier {params.verifier:q} \
            --prompts {input.prompts:q} --out results/{wildcards.target}/capture --job {wildcards.job} >{log:q} 2>&1
        """


rule capture:
    input:
        verifier=verifier_record,
        prompts="results/{target}/prompts/train.jsonl",
        jobs=capture_jobs,
    output:
        "results/{target}/capture/manifest.json",
    log:
        "logs/{target}/capture.log",
    benchmark:
        "results/{target}/benchmarks/capture.tsv"
    priority: FIRST
    threads: all_cores
    resources:
        timed=ALONE,
        gpu=lambda wildcards: 0 if capture_jobs(wildcards) else engine_gpus(wildcards),
        mem_mb=needs("memory_gb", 1000),
        disk_mb=disk_mb("capture"),
        runtime=minutes("capture", 240),
    params:
        code=code_of("harness.capture.__main__"),
        settings=settings_for(slices.capture),
        verifier=verifier_folder,
    shell:
        """
        python -m harness.gpus {resources.gpu} \
            python -m harness.capture --settings {params.settings:q} --verifier {params.verifier:q} \
            --prompts {input.prompts:q} --out results/{wildcards.target}/capture >{log:q} 2>&1
        """
