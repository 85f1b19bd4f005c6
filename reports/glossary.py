"""`python -m reports.glossary`: writes the definitions of all metrics into docs/metrics.md, from `reports.metrics`.

The page's other text is written by hand; a test compares its table with `METRICS`.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from harness.errors import UserError, run_command
from harness.files import replacing
from harness.progress import log
from reports.metrics import AXES, METRICS

PAGE = Path("docs/metrics.md")
START, END = "<!-- metrics -->", "<!-- /metrics -->"


def definitions() -> str:
    """The Markdown of all metrics, in the order of `METRICS`."""
    return "\n\n".join("\n".join(_entry(name)) for name in METRICS)


def _entry(name: str) -> Iterator[str]:
    metric = METRICS[name]
    facts = [metric.unit, metric.pooled, f"{metric.better} is better" if metric.better else ""]
    yield f"### `{name}`\n"
    yield f"**{metric.label}** ({', '.join(filter(None, facts))}). {metric.meaning}"


def renewed(page: str) -> str:
    """The page with the definitions of this version between its two markers.

    Raises:
        UserError: a marker is missing.
    """
    if START not in page or END not in page.partition(START)[2]:
        raise UserError(f"{PAGE}: no {START} ... {END}. Fix: add the two lines where the definitions belong")
    before, _, rest = page.partition(START)
    axes = ", ".join(f"`_{letter}8` ({told})" for letter, told in AXES.items())
    ends = f"What a figure was measured at stands at the end of its name: {axes}, `_p95` (a percentile)."
    return f"{before}{START}\n{ends}\n\n{definitions()}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    """Renew the page."""
    argparse.ArgumentParser(prog="python -m reports.glossary", description=f"Write {PAGE} anew.").parse_args()
    text = renewed(PAGE.read_text(encoding="utf-8"))
    with replacing(PAGE) as partial:
        partial.write_text(text, encoding="utf-8")
    log(f"{PAGE}: written")
    return 0


if __name__ == "__main__":
    run_command(main)
