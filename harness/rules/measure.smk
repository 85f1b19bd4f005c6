"""One server per variant and its checks, then the comparisons between variants."""


rule measure:
    input:
        verifier=verifier_record,
        served=served_files,
        prompts="results/{target}/prompts/heldout.jsonl",
    output:
        server="results/{target}/measured/{variant}/server.json",
        replies="results/{target}/measured/{variant}/replies.jsonl",
        acceptance="results/{target}/measured/{variant}/acceptance.json",
        samples="results/{target}/measured/{variant}/samples.jsonl",
        accuracy="results/{target}/measured/{variant}/accuracy.json",
        latency="results/{target}/measured/{variant}/latency.json",
    log:
        "logs/{target}/measure/{variant}.log",
    benchmark:
        "results/{target}/benchmarks/measure/{variant}.tsv"
    priority: THEN
    threads: all_cores
    resources:
        timed=ALONE,
        gpu=engine_gpus,
        mem_mb=needs("memory_gb", 1000),
        disk_mb=500,
        runtime=minutes("measure", 240, "variant"),
    params:
        code=code_of("harness.evaluation.measure"),
        settings=settings_for(slices.measure, "variant"),
        served=served_folder,
        verifier=verifier_folder,
    shell:
        """
        python -m harness.gpus {resources.gpu} \
            python -m harness.evaluation measure --settings {params.settings:q} --variant {wildcards.variant} \
            --model {params.served:q} --verifier {params.verifier:q} --prompts {input.prompts:q} \
            --out results/{wildcards.target}/measured/{wildcards.variant} >{log:q} 2>&1
        """


rule match:
    input:
        base=base_replies,
        variant="results/{target}/measured/{variant}/replies.jsonl",
    output:
        "results/{target}/match/{variant}.json",
    log:
        "logs/{target}/match/{variant}.log",
    benchmark:
        "results/{target}/benchmarks/match/{variant}.tsv"
    resources:
        timed=SHARED,
        mem_mb=2000,
        disk_mb=10,
        runtime=30,
    params:
        code=code_of("harness.evaluation.match"),
        settings=settings_for(slices.match, "variant"),
        base=lambda wildcards, input: os.path.dirname(input.base),
    shell:
        """
        python -m harness.evaluation match --settings {params.settings:q} \
            --base {params.base:q} \
            --variant results/{wildcards.target}/measured/{wildcards.variant} --out {output:q} >{log:q} 2>&1
        """


rule parity:
    input:
        verifier=verifier_record,
        draft="results/{target}/drafts/{algorithm}/model.safetensors",
        replies="results/{target}/measured/{algorithm}/replies.jsonl",
        training="results/{target}/training/{algorithm}/summary.json",
        prompts="results/{target}/prompts/heldout.jsonl",
    output:
        "results/{target}/parity/{algorithm}.json",
    log:
        "logs/{target}/parity/{algorithm}.log",
    benchmark:
        "results/{target}/benchmarks/parity/{algorithm}.tsv"
    threads: half_of_cores
    resources:
        timed=SHARED,
        gpu=engine_gpus,
        mem_mb=needs("memory_gb", 1000),
        disk_mb=10,
        runtime=120,
    params:
        code=code_of("harness.evaluation.parity", "algorithms.{algorithm}.algorithm"),
        settings=settings_for(slices.parity),
        verifier=verifier_folder,
    shell:
        """
        python -m harness.gpus {resources.gpu} \
            python -m harness.evaluation parity --settings {params.settings:q} \
            --draft results/{wildcards.target}/drafts/{wildcards.algorithm} --verifier {params.verifier:q} \
            --measured results/{wildcards.target}/measured/{wildcards.algorithm} --training {input.training:q} \
            --prompts {input.prompts:q} --out {output:q} >{log:q} 2>&1
        """


rule lossless:
    input:
        verifier=verifier_record,
        base="results/{target}/measured/none/samples.jsonl",
        variant="results/{target}/measured/{variant}/samples.jsonl",
    output:
        "results/{target}/lossless/{variant}.json",
    log:
        "logs/{target}/lossless/{variant}.log",
    benchmark:
        "results/{target}/benchmarks/lossless/{variant}.tsv"
    threads: half_of_cores
    resources:
        timed=SHARED,
        gpu=engine_gpus,
        mem_mb=needs("memory_gb", 1000),
        disk_mb=10,
        runtime=60,
    params:
        code=code_of("harness.evaluation.lossless"),
        settings=settings_for(slices.lossless),
        verifier=verifier_folder,
    shell:
        """
        python -m harness.gpus {resources.gpu} \
            python -m harness.evaluation lossless --settings {params.settings:q} \
            --base results/{wildcards.target}/measured/none \
            --variant results/{wildcards.target}/measured/{wildcards.variant} --verifier {params.verifier:q} \
            --out {output:q} >{log:q} 2>&1
        """


rule sweep:
    input:
        verifier=verifier_record,
        served=served_files,
        prompts="results/{target}/prompts/heldout.jsonl",
    output:
        "results/{target}/sweep/{variant}/k{draft_tokens}.json",
    log:
        "logs/{target}/sweep/{variant}_k{draft_tokens}.log",
    benchmark:
        "results/{target}/benchmarks/sweep/{variant}_k{draft_tokens}.tsv"
    wildcard_constraints:
        draft_tokens="[0-9]+",
    priority: THEN
    threads: all_cores
    resources:
        timed=ALONE,
        gpu=engine_gpus,
        mem_mb=needs("memory_gb", 1000),
        disk_mb=100,
        runtime=60,
    params:
        code=code_of("harness.evaluation.sweep"),
        settings=settings_for(slices.sweep, "variant", "draft_tokens"),
        served=served_folder,
        verifier=verifier_folder,
    shell:
        """
        python -m harness.gpus {resources.gpu} \
            python -m harness.evaluation sweep --settings {params.settings:q} --variant {wildcards.variant} \
            --model {params.served:q} --verifier {params.verifier:q} --prompts {input.prompts:q} \
            --out {output:q} >{log:q} 2>&1
        """


rule verification:
    input:
        verifier=verifier_record,
        prompts="results/{target}/prompts/heldout.jsonl",
    output:
        "results/{target}/sweep/verification.json",
    log:
        "logs/{target}/verification.log",
    benchmark:
        "results/{target}/benchmarks/verification.tsv"
    priority: THEN
    threads: all_cores
    resources:
        timed=ALONE,
        gpu=engine_gpus,
        mem_mb=needs("memory_gb", 1000),
        disk_mb=100,
        runtime=60,
    params:
        code=code_of("harness.evaluation.verification"),
        settings=settings_for(slices.verification),
        verifier=verifier_folder,
    shell:
        """
        python -m harness.gpus {resources.gpu} \
            python -m harness.evaluation verification --settings {params.settings:q} --verifier {params.verifier:q} \
            --prompts {input.prompts:q} --out {output:q} >{log:q} 2>&1
        """


rule speed:
    input:
        base="results/{target}/measured/none/latency.json",
        measured="results/{target}/measured/{variant}/latency.json",
        verification="results/{target}/sweep/verification.json",
        swept=swept_files,
    output:
        "results/{target}/speed/{variant}.json",
    log:
        "logs/{target}/speed/{variant}.log",
    benchmark:
        "results/{target}/benchmarks/speed/{variant}.tsv"
    resources:
        timed=SHARED,
        mem_mb=2000,
        disk_mb=10,
        runtime=10,
    params:
        code=code_of("harness.evaluation.speed"),
        settings=settings_for(slices.speed),
        swept=lambda wildcards, input: ["--swept", *input.swept] if input.swept else [],
    shell:
        """
        python -m harness.evaluation speed --settings {params.settings:q} --variant {wildcards.variant} \
            --base results/{wildcards.target}/measured/none \
            --measured results/{wildcards.target}/measured/{wildcards.variant} \
            --verification {input.verification:q} {params.swept:q} --out {output:q} >{log:q} 2>&1
        """
