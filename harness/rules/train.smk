"""From replies and states to a draft that vLLM can load: training with export, lint."""


# The state and metrics.jsonl are not declared: a killed training goes on from them. Snakemake runs a step again when its
# recipe, data, verifier or code changed: then training starts over, and its log says what changed.
rule train:
    input:
        verifier=verifier_record,
        capture="results/{target}/capture/manifest.json",
        start=start_files,
    output:
        config="results/{target}/drafts/{algorithm}/config.json",
        weights="results/{target}/drafts/{algorithm}/model.safetensors",
        summary="results/{target}/training/{algorithm}/summary.json",
    log:
        "logs/{target}/train/{algorithm}.log",
    benchmark:
        "results/{target}/benchmarks/train/{algorithm}.tsv"
    priority: FIRST
    threads: all_cores
    resources:
        timed=ALONE,
        gpu=training_gpus,
        # Not a parameter: on how many GPUs a draft was trained does not make it another one.
        processes=training_processes,
        mem_mb=needs("memory_gb", 1000),
        disk_mb=disk_mb("train", "algorithm"),
        runtime=minutes("train", 1440, "algorithm"),
    params:
        code=training_code,
        settings=settings_for(slices.training, "algorithm"),
        verifier=verifier_folder,
    shell:
        """
        python -m harness.gpus {resources.gpu} \
            python -m harness.training.launch --processes {resources.processes} \
            --settings {params.settings:q} --algorithm {wildcards.algorithm} \
            --verifier {params.verifier:q} --capture results/{wildcards.target}/capture \
            --out results/{wildcards.target}/drafts/{wildcards.algorithm} \
            --state results/{wildcards.target}/training/{wildcards.algorithm} --restart-if-changed >{log:q} 2>&1
        """


rule lint:
    input:
        verifier=verifier_record,
        config="results/{target}/drafts/{algorithm}/config.json",
        weights="results/{target}/drafts/{algorithm}/model.safetensors",
    output:
        "results/{target}/lint/{algorithm}.json",
    log:
        "logs/{target}/lint/{algorithm}.log",
    benchmark:
        "results/{target}/benchmarks/lint/{algorithm}.tsv"
    priority: FIRST
    resources:
        timed=SHARED,
        mem_mb=4000,
        disk_mb=10,
        runtime=30,
    params:
        code=code_of(
            "harness.checkpoint.lint_command", "algorithms.{algorithm}.algorithm"
        ),
        verifier=verifier_folder,
    shell:
        """
        python -m harness.checkpoint lint results/{wildcards.target}/drafts/{wildcards.algorithm} \
            --verifier {params.verifier:q} --out {output:q} >{log:q} 2>&1
        """
