"""What a person asks for: `reproduce_<name>`, `plan_<name>`, `nightly`; last, for the check of what is asked for."""

for target, run in RUNS.items():

    rule:
        name:
            f"reproduce_{target}"
        input:
            f"results/{target}/report/gates_met",

    rule:
        name:
            f"plan_{target}"
        log:
            f"logs/{target}/plan.log",
        localrule: True
        params:
            of=f"{run.name} --scale {run.scale}",
        shell:
            "python -m harness.plan {params.of} 2>&1 | tee {log:q}"


# Every family's miniature, one after another.
rule nightly:
    input:
        [
            f"results/{target}/report/gates_met"
            for target, run in RUNS.items()
            if run.scale == "mini"
        ],


include: "share.smk"


refuse_unknown_targets()
