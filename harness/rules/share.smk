"""Finished results where others reach them: `share_<target>` once SPECPROOF_SHARED names a folder or an s3:// address.

Through Snakemake's storage plugins, whose settings (keys, endpoint) are theirs. See docs/clusters.md.
"""

SHARED = os.environ.get("SPECPROOF_SHARED")


def shared_files(run):
    """What is shared of a run, below its results: the report with its figures, and the drafts."""
    told = ["report/report.html", "report/report.md", "results.csv", "provenance.json"]
    drafts = [
        f"drafts/{algorithm}/{name}"
        for algorithm in run.algorithms
        for name in ("config.json", "model.safetensors")
    ]
    return [*told, *drafts]


if SHARED:

    storage shared:
        provider="s3" if SHARED.startswith("s3://") else "fs",

    for target, run in RUNS.items():

        rule:
            name:
                f"share_{target}"
            input:
                f"results/{target}/report/gates_met",
            output:
                [
                    storage.shared(f"{SHARED}/{target}/{name}")
                    for name in shared_files(run)
                ],
            log:
                f"logs/{target}/share.log",
            localrule: True
            params:
                results=f"results/{target}",
                files=shared_files(run),
            shell:
                """
                (
                    root=$(realpath "$(dirname {output[0]:q})/..")
                    cd {params.results:q} && cp --parents {params.files:q} "$root"
                ) >{log:q} 2>&1
                """
