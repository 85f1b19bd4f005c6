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


# The shards stand beside the manifest and are not declared: Snakemake would delete finished ones before a second try.
rule capture:
    input:
        verifier=verifier_record,
        prompts="results/{target}/prompts/train.jsonl",
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
            --prompts {input.prompts:q} --out results/{wildcards.target}/capture >{log:q} 2>&1
        """
