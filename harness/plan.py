"""`python -m harness.plan NAME [--scale SCALE]`: what a reproduction takes, step by step, before anything starts.

Called by the targets `plan_<name>`. Expected values from stated sizes and mean lengths, not bounds; `harness.costs` has
the formulas, `harness.machines` what is assumed of the machine.
"""

import argparse
import sys

from rich.console import Console
from rich.table import Table

from harness.config import Reproduction, load_reproduction
from harness.errors import run_command
from harness.machines import KNOWN
from harness.planning import Planned, plan_of
from harness.recipes import SCALES

MINUTE_H, DAY_H = 1 / 60, 24.0
WIDTH = 120


def amount(number: float) -> str:
    """`214.0 M` for 214e6."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"


def size_text(bytes_: float) -> str:
    """`7.0 TB`; a dash for nothing."""
    return f"{amount(bytes_)}{'' if bytes_ >= 1e3 else ' '}B" if bytes_ else "–"


def time_text(hours: float) -> str:
    """`2.1 min`, `3.4 h` or `5.0 d`."""
    if hours < 1:
        return f"{hours / MINUTE_H:.1f} min"
    return f"{hours:.1f} h" if hours < 2 * DAY_H else f"{hours / DAY_H:.1f} d"


def _steps(planned: Planned, gpu: bool) -> Table:
    device = "GPU" if gpu else "CPU"
    table = Table("step", "of", title="steps", title_justify="left")
    for heading in ("tokens", "time", f"{device}s", f"{device} hours", "disk", "GPU memory, each" if gpu else "memory"):
        table.add_column(heading, justify="right")
    for step in planned.steps:
        spent = f"{step.hours * step.devices:.2f}" if step.devices else "–"
        table.add_row(
            step.name, step.of, amount(step.tokens) if step.tokens else "–", time_text(step.hours),
            f"{step.devices}", spent, size_text(step.disk_bytes), size_text(step.memory_bytes),
        )  # fmt: skip
    hours = sum(step.hours for step in planned.steps)
    table.add_section()
    table.add_row(
        "all", "", "", time_text(hours), "", f"{planned.device_hours:.1f}", size_text(planned.disk_bytes),
        size_text(planned.memory_bytes),
    )  # fmt: skip
    return table


def _modes(planned: Planned) -> Table:
    table = Table("capture mode", title="ways to bring states to the training", title_justify="left")
    for heading in ("disk", "verifier, device hours", "until the slowest draft is trained", "devices at once"):
        table.add_column(heading, justify="right")
    for mode in planned.modes:
        table.add_row(
            mode.name, size_text(mode.disk_bytes), f"{mode.verifier_device_hours:.1f}", time_text(mode.wall_hours),
            f"{mode.devices}",
        )  # fmt: skip
    return table


def show(run: Reproduction, console: Console) -> None:
    """Print the plan of one reproduction."""
    planned = plan_of(run)
    assert run.plan is not None, "plan_of refuses a reproduction without one"
    machine, plan, size = KNOWN[run.plan.machine], run.plan, run.plan.verifier
    rows = sum(source.rows for source in run.data.train)
    console.print(
        f"[bold]{run.target}[/]: {run.verifier.id}, {size.parameters / 1e9:.3g} billion parameters, {size.layers} "
        f"layers of {size.hidden_size}; {rows:,} prompts of {plan.prompt_tokens:g} tokens, replies of "
        f"{plan.reply_tokens:g}; {len(run.capture.aux_layers) + 1} states a token kept"
    )
    console.print(f"machine: {plan.machine}; {machine.measured}\n", highlight=False)
    console.print(_steps(planned, machine.gpu))
    console.print(_modes(planned))
    for step in planned.steps:
        if step.memory_bytes > machine.memory_bytes:
            console.print(
                f"[yellow]{step.name} {step.of}: {size_text(step.memory_bytes)}, more than a {plan.machine} has. "
                "Lower max_num_seqs, training.tokens_per_step or max_anchors[/]"
            )
    if planned.disk_bytes > run.needs.disk_gb * 1e9:
        console.print(
            f"[yellow]disk: {size_text(planned.disk_bytes)}, more than the {run.needs.disk_gb:g} GB that the recipe "
            "asks for. Raise needs.disk_gb, or take fewer rows[/]"
        )
    console.print(f"The recipe asks for {run.needs.text}, and captures {run.capture.mode}.", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.plan", description=__doc__)
    parser.add_argument("name", help="the reproduction, a folder under reproductions/")
    parser.add_argument("--scale", choices=SCALES, default="full", help="default full")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    show(load_reproduction(arguments.name, arguments.scale), console)


if __name__ == "__main__":
    run_command(main)
