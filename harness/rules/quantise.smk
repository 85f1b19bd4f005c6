"""The verifier in 8 bits, and drafts that are served with it. Runs only where a reproduction has the section."""


rule quantise:
    input:
        "models/{model}/verifier.json",
    output:
        "models/{model}_{scheme}/verifier.json",
    log:
        "logs/{model}/quantise_{scheme}.log",
    benchmark:
        "results/benchmarks/quantise_{model}_{scheme}.tsv"
    wildcard_constraints:
        scheme="int8|fp8",
    priority: FIRST
    threads: all_cores
    resources:
        timed=ALONE,
        mem_mb=needs("memory_gb", 1000),
        disk_mb=needs("disk_gb", 1000),
        runtime=120,
    params:
        code=code_of("harness.quantisation.folders"),
    shell:
        """
        python -m harness.quantisation verifier --verifier models/{wildcards.model} --scheme {wildcards.scheme} \
            --out models/{wildcards.model}_{wildcards.scheme} >{log:q} 2>&1
        """


rule redirect:
    input:
        draft=lambda wildcards: f"results/{wildcards.target}/drafts/{plain_name(wildcards)}/model.safetensors",
        verifier=verifier_record,
    output:
        config="results/{target}/quantised/{variant}/config.json",
        weights="results/{target}/quantised/{variant}/model.safetensors",
    log:
        "logs/{target}/redirect/{variant}.log",
    benchmark:
        "results/{target}/benchmarks/redirect/{variant}.tsv"
    priority: FIRST
    resources:
        timed=SHARED,
        mem_mb=2000,
        disk_mb=10,
        runtime=5,
    params:
        code=code_of("harness.quantisation.folders"),
        verifier=verifier_folder,
        draft=lambda wildcards, input: os.path.dirname(input.draft),
    shell:
        """
        python -m harness.quantisation draft --draft {params.draft:q} --verifier {params.verifier:q} \
            --out results/{wildcards.target}/quantised/{wildcards.variant} >{log:q} 2>&1
        """
