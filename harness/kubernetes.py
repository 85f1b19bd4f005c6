"""`python -m harness.kubernetes submit|status|cancel`: steps of the workflow as Jobs of Kubernetes, through kubectl.

Called by Snakemake's executor `cluster-generic` as profiles/kubernetes/config.yaml says. The repository lies on a
volume that every pod mounts where this process sees it, so that a step finds in a pod what it would find here.
"""

import argparse
import json
import subprocess
import uuid
from pathlib import Path
from typing import Any

import yaml

from harness.errors import UserError, run_command
from harness.progress import log

GPU = "nvidia.com/gpu"
SEPARATOR = "/"  # between namespace and name, in what Snakemake knows a job by


def kubectl(*words: str, given: str | None = None) -> str:
    """What `kubectl` prints.

    Raises:
        UserError: it is not there, or failed; the message holds what it said.
    """
    try:
        done = subprocess.run(["kubectl", *words], input=given, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UserError("kubectl: not installed. Fix: install it where Snakemake runs") from None
    if done.returncode:
        raise UserError(f"kubectl {' '.join(words)}: {done.stderr.strip()}. Fix: mend what it names")
    return done.stdout


def manifest_of(template: Path, step: str, script: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    """The Job that runs `script` in the current folder.

    Args:
        template: a Job with one container, in YAML. step: the rule's name.
        wanted: gpus, cores, memory_mb, minutes.

    Raises:
        UserError: the template has no container.
    """
    job = yaml.safe_load(template.read_text())
    try:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        metadata = job["metadata"]
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{template}: no Job with one container. Fix: take the one of the repository again") from None
    amounts = {"cpu": str(wanted.cores), "memory": f"{wanted.memory_mb}M"}
    if wanted.gpus:
        amounts[GPU] = str(wanted.gpus)
    metadata["name"] = f"{step.replace('_', '-')}-{uuid.uuid4().hex[:12]}"
    # Requests are the limits: a step that takes more than it said would be ended anyway, and measures beside others.
    container["resources"] = {"requests": amounts, "limits": amounts}
    container["command"] = ["/bin/sh", str(script.absolute())]
    container["workingDir"] = str(Path.cwd())
    job["spec"]["activeDeadlineSeconds"] = wanted.minutes * 60
    return job


def submit(arguments: argparse.Namespace) -> None:
    """Create the Job and print its name, with which Snakemake asks for it."""
    job = manifest_of(arguments.manifest, arguments.step, arguments.script, arguments)
    kubectl("create", "-f", "-", given=json.dumps(job))
    print(SEPARATOR.join([job["metadata"].get("namespace", "default"), job["metadata"]["name"]]))


def status(arguments: argparse.Namespace) -> None:
    """Print running, success or failed; a job that was deleted has failed."""
    namespace, _, name = arguments.job.partition(SEPARATOR)
    try:
        told = kubectl("get", "job", name, "--namespace", namespace, "--ignore-not-found", "--output", "json")
    except UserError as error:
        # Snakemake would give up the whole run; it asks again soon.
        log(f"{error}; taken as running")
        told = "{}"
    if not told.strip():
        print("failed")
        return
    conditions = json.loads(told).get("status", {}).get("conditions", [])
    met = {condition["type"] for condition in conditions if condition["status"] == "True"}
    print("success" if "Complete" in met else "failed" if "Failed" in met else "running")


def cancel(arguments: argparse.Namespace) -> None:
    """Delete Jobs with their pods."""
    for job in arguments.jobs:
        namespace, _, name = job.partition(SEPARATOR)
        kubectl("delete", "job", name, "--namespace", namespace, "--wait=false", "--ignore-not-found")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.kubernetes", description="Steps as Jobs of Kubernetes.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("submit", help="create a Job and print its name")
    one.add_argument("--manifest", type=Path, required=True, help="Job in YAML, with your image and volume")
    one.add_argument("--step", required=True, help="name of the step")
    for amount in ("gpus", "cores", "memory-mb", "minutes"):
        one.add_argument(f"--{amount}", type=int, required=True)
    one.add_argument("script", type=Path, help="what the pod runs")
    one.set_defaults(run=submit)
    two = commands.add_parser("status", help="print running, success or failed")
    two.add_argument("job", help="as submit printed it")
    two.set_defaults(run=status)
    three = commands.add_parser("cancel", help="delete Jobs")
    three.add_argument("jobs", nargs="+", help="as submit printed them")
    three.set_defaults(run=cancel)
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    arguments.run(arguments)


if __name__ == "__main__":
    run_command(main)
