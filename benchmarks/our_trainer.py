"""Our trainer, as `python -m harness.training` runs it, by turns where `training_speed` gives them.

python -m benchmarks.our_trainer OPTIONS-OF-`python -m harness.training`
"""

from typing import Any

from benchmarks.turns import Turns
from harness.errors import run_command
from harness.training import __main__ as command
from harness.training import loop


def _wait_before_each_step(turns: Turns) -> None:
    step = loop._step

    def by_turns(run: loop.Run) -> tuple[int, dict[str, Any]]:
        turns.next()
        tokens, row = step(run)
        turns.tell(tokens=tokens, loss=row["loss"])
        return tokens, row

    loop._step = by_turns


def main() -> None:
    """Train as the step does."""
    turns = Turns.given()
    if turns:
        _wait_before_each_step(turns)
    command.main()
    if turns:
        turns.end()


if __name__ == "__main__":
    run_command(main)
