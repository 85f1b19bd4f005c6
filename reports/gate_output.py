"""The gate's verdicts as text: a Markdown page, JUnit XML, and the lines on the terminal.

Called by `python -m reports.gate`.
"""

from collections.abc import Sequence
from xml.etree import ElementTree

from reports.baseline import Accepted
from reports.cells import Cell, Column
from reports.gate_verdicts import BETTER, CANNOT, PASS, REGRESSION, SKIPPED, Verdict, outcome
from reports.markdown import markdown_table
from reports.metrics import METRICS
from reports.names import benchmark_label, variant_label
from reports.wording import base_name, signed, written

ORDER = (REGRESSION, CANNOT, BETTER, PASS, SKIPPED)
SAID = {
    PASS: "pass: nothing got worse",
    REGRESSION: "regression",
    CANNOT: "cannot judge",
}
COLUMNS = [
    Column("Verdict", numeric=False),
    Column("Variant", numeric=False),
    Column("Metric", numeric=False),
    Column("Benchmark", numeric=False),
    Column("Baseline"),
    Column("Now"),
    Column("Change"),
    Column("Pairs"),
    Column("Note", numeric=False),
]


def _label(metric: str) -> str:
    known = METRICS.get(base_name(metric))
    if known is None:
        return metric
    at = metric.removeprefix(base_name(metric)).lstrip("_")
    return f"{known.label} {at}".strip()


def _figure(metric: str, value: float | None) -> str:
    if value is None:
        return "–"
    return written(metric, value) if base_name(metric) in METRICS else f"{value:g}"


def change_text(verdict: Verdict) -> str:
    """`−14.1% (−18.0 to −10.2)`: relative, or points of accuracy; a count without an interval."""
    if verdict.change is None:
        return "–"
    if verdict.metric == "output_match_faults":
        return signed(verdict.change, 0)
    unit = " points" if verdict.metric.startswith("accuracy") else "%"
    text = signed(100 * verdict.change, 1) + unit
    if verdict.low is None or verdict.high is None:
        return text
    return f"{text} ({signed(100 * verdict.low, 1)} to {signed(100 * verdict.high, 1)})"


def row_texts(verdict: Verdict) -> list[str]:
    """The verdict under the headings of `COLUMNS`."""
    return [
        verdict.verdict, variant_label(verdict.variant), _label(verdict.metric), benchmark_label(verdict.benchmark),
        _figure(verdict.metric, verdict.before), _figure(verdict.metric, verdict.after), change_text(verdict),
        "–" if verdict.n is None else str(verdict.n), verdict.note,
    ]  # fmt: skip


def as_markdown(verdicts: Sequence[Verdict], target: str, accepted: Accepted) -> str:
    """A page: the outcome, then every verdict, the worst first."""
    worst_first = sorted(verdicts, key=lambda each: ORDER.index(each.verdict))
    rows = [[Cell(text) for text in row_texts(each)] for each in worst_first]
    return (
        f"# Gate of {target}: {SAID[outcome(verdicts)]}\n\n"
        f"Against the baseline of {accepted.date[:10]}, commit {accepted.commit[:12]}: {accepted.reason}\n\n"
        f"{markdown_table(COLUMNS, rows)}\n\n"
        "Changes of acceptance are of the accepted tokens per step, changes of speed of the ratio to the base; both in "
        "per cent. In brackets: intervals paired by prompt, so wide that all verdicts together raise a false alarm at "
        "most once in 100 runs; those per position are 95% intervals and only explain. A loss counts where its whole "
        "interval lies below zero.\n"
    )


def as_junit(verdicts: Sequence[Verdict], target: str) -> str:
    """JUnit XML: a regression is a failure, what cannot be judged an error, what is not compared is skipped."""
    tags = {REGRESSION: "failure", CANNOT: "error", SKIPPED: "skipped"}
    found = [each.verdict for each in verdicts]
    counts = {f"{tag}s" if tag != "skipped" else tag: str(found.count(kind)) for kind, tag in tags.items()}
    suite = ElementTree.Element("testsuite", name=f"gate {target}", tests=str(len(found)), **counts)
    for each in verdicts:
        name = " ".join(filter(None, (each.metric, each.benchmark)))
        case = ElementTree.SubElement(suite, "testcase", classname=f"{target}.{each.variant}", name=name)
        if each.verdict in tags:
            told = each.note or change_text(each)
            detail = ElementTree.SubElement(case, tags[each.verdict], message=told)
            detail.text = line(each)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def line(verdict: Verdict) -> str:
    """One verdict as a line of the terminal."""
    where = " ".join(filter(None, (verdict.variant, verdict.metric, verdict.benchmark)))
    figures = f"{_figure(verdict.metric, verdict.before)} -> {_figure(verdict.metric, verdict.after)}"
    moved = f": {figures}, {change_text(verdict)}" if verdict.change is not None else ""
    return f"{verdict.verdict}: {where}{moved}{f' ({verdict.note})' if verdict.note else ''}"
