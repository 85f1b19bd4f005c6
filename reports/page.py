"""Everything a report shows, in order, before it is written as HTML or Markdown.

`make_page` is called by `python -m reports`; `reports.html` and `reports.markdown` write the result out.
"""

import re
from dataclasses import dataclass
from typing import Any

from reports import advice, cautions, figures, metrics, names, notes, origins, tables, wording
from reports.cells import Table, interval
from reports.collect import Run
from reports.formats import Difference, MatchFile
from reports.gates import MET, NOT_FAILED, Gate
from reports.rows import Results

SHOWN_DIFFERENCES = 3
FURTHER = (
    "speed",
    "acceptance",
    "sampling",
    "accuracy",
    "training",
)  # sections that show what has no figure in a table


@dataclass(frozen=True)
class KeyFigure:
    """One large number on top of the page."""

    value: str
    label: str
    sub: str


@dataclass(frozen=True)
class Parting:
    """A place where replies part, with its texts on one line each; a line break is shown as a sign."""

    where: str
    margin: str
    is_fault: bool
    before: str
    base: str
    draft: str


@dataclass(frozen=True)
class Differences:
    """Where the replies of a variant (or of several alike) leave the base's: a sentence, then the places."""

    label: str
    told: str
    shown: list[Parting]
    rest: list[Parting]


@dataclass(frozen=True)
class Page:
    """The content of a report. `tables` and `figures` go by section; `answers` is what stands on top.

    `notes` say in a paragraph under which conditions a table came about, by the table's name or `output`, `sampled`.
    `ending` names the scale in the heading; empty for a full run. `served` are command lines of servers,
    `sampled` what was found in sampled replies.
    """

    model: str
    ending: str
    scale_label: str
    scale_note: str
    about: list[tuple[str, str]]
    answers: list[advice.Answer]
    key_figures: list[KeyFigure]
    warnings: list[str]
    tables: dict[str, Table]
    notes: dict[str, str]
    figures: dict[str, list[figures.FigureGroup]]
    differences: list[Differences]
    definitions: list[metrics.Metric]
    provenance: dict[str, Any]
    command: list[str]
    served: list[str]
    sampled: list[tuple[str, str]]
    gates_missed: int
    gates_told: str
    settings: dict[str, Any]

    @property
    def heading(self) -> str:
        """`Draft models for <model>`, and the scale where it is not full."""
        return f"Draft models for {self.model}{self.ending}"


def make_page(run: Run, results: Results, gates: list[Gate], provenance: dict[str, Any]) -> Page:
    """Lay out the report of `run`; `provenance` is the content of provenance.json."""
    model = run.reproduction.verifier.id.rpartition("/")[2]
    label = names.scale_label(run.scale)
    ending = "" if run.scale == "full" else f" ({label})"
    choices = [advice.choose(run, results, level) for level in advice.levels(run)]
    best = next((choice.best for choice in choices), None)
    missed = sum(gate.verdict != MET for gate in gates)
    return Page(
        model=model,
        ending=ending,
        scale_label=label,
        scale_note=names.SCALE_NOTES[run.scale],
        about=_about(run, results, provenance),
        answers=advice.answers(run, results),
        key_figures=_key_figures(run, results, gates, best),
        warnings=cautions.cautions(run, results, gates),
        tables=_tables(run, results, gates, _marks(choices)),
        notes=notes.all_notes(run, results),
        figures=figures.all_figures(run, results),
        differences=_all_differences(run),
        definitions=_definitions(results),
        provenance=provenance,
        command=_command(run, provenance),
        served=origins.serve_commands(run),
        sampled=[(names.variant_label(variant), file.found) for variant, file in run.sampled.items() if file.found],
        gates_missed=missed,
        gates_told=_gates_told(gates),
        settings=run.reproduction.model_dump(mode="json"),
    )


def _gates_told(gates: list[Gate]) -> str:
    missed = sum(gate.verdict != MET for gate in gates)
    unsure = sum(gate.said == NOT_FAILED for gate in gates)
    told = f"{missed} of {len(gates)} gates missed" if missed else f"All {len(gates)} gates met"
    return f"{told}; {unsure} of these not failed, with an interval that reaches beyond the margin" if unsure else told


def _marks(choices: list[advice.Choice]) -> dict[str, str]:
    """What stands below a variant's name: where it is the fastest sound draft, or not told apart from it."""
    marks: dict[str, dict[str, list[str]]] = {}
    for choice in choices:
        for variant in (choice.best, *choice.tied) if choice.best else ():
            verb = "not told apart from the fastest" if choice.tied else "fastest"
            marks.setdefault(variant, {}).setdefault(verb, []).append(str(choice.level))
    told = {v: [f"{verb} at {names.listed(at, 'and')}" for verb, at in found.items()] for v, found in marks.items()}
    return {variant: ", ".join(parts) for variant, parts in told.items()}


def _tables(run: Run, results: Results, gates: list[Gate], marks: dict[str, str]) -> dict[str, Table]:
    made = {"leaderboard": tables.leaderboard(run, results, marks), "gates": tables.gates(gates)}
    for of_results in (
        tables.acceptance,
        tables.accuracy,
        tables.speed,
        tables.in_pairs,
        tables.lengths,
        tables.training,
        tables.parity,
        tables.published,
        tables.all_figures,
        origins.not_run,
    ):
        made[of_results.__name__] = of_results(run, results)
    for of_run in (
        origins.variants,
        origins.servers,
        origins.support,
        tables.elsewhere,
        origins.data,
        origins.capture,
        origins.costs,
        origins.provenance,
    ):
        made[of_run.__name__] = of_run(run)
    made |= {f"further_{section}": tables.further(results, section) for section in FURTHER}
    return {name: table for name, table in made.items() if table.rows}


def _about(run: Run, results: Results, provenance: dict[str, Any]) -> list[tuple[str, str]]:
    engines = [f"{name} {version}" for name, version in provenance["versions"].items() if name.startswith("vllm")]
    commit = ", ".join(commit[:12] if commit else "unknown" for commit in provenance["commits"])
    return [
        ("Verifier", run.reproduction.verifier.id),
        ("Weights", origins.weights(run)),
        ("Machine", results.rows[0].machine),
        ("Engine", ", ".join(engines) or "unknown"),
        ("Commit", commit + (" with uncommitted changes" if provenance["dirty"] else "")),
        ("Finished", provenance["finished_at"].replace("T", " ").replace("+00:00", " UTC")),
    ]


def _key_figures(run: Run, results: Results, gates: list[Gate], best: str | None) -> list[KeyFigure]:
    """The recommended variant (else the first draft) in three numbers, and the gates."""
    shown = best or next(iter(run.reproduction.algorithms))
    benchmark, level = run.reproduction.evaluate.latency.benchmark, advice.levels(run)[0]
    labels = {
        f"speedup_c{level}": f"speed-up of {names.variant_label(shown)}, {advice.at_once(level)}, "
        f"{names.benchmark_label(benchmark)}",
        "acceptance_length": f"tokens per verify step, {names.benchmark_label(benchmark)}",
    }
    found = [(results.get(shown, metric, benchmark), label) for metric, label in labels.items()]
    key = [
        KeyFigure(wording.written(row.metric, row.value), label, interval(row))
        for row, label in found
        if row and row.value
    ]
    match, met = run.match[shown], sum(gate.verdict == MET for gate in gates)
    faults = f"{match.faults or 'no'} fault{'' if match.faults == 1 else 's'} among the others"
    key.append(KeyFigure(f"{match.exact} of {match.total}", "greedy replies identical", faults))
    unsure = sum(gate.said == NOT_FAILED for gate in gates)
    sub = f"{unsure} of them not failed rather than shown" if unsure else ""
    return [*key, KeyFigure(f"{met} of {len(gates)}", "gates met", sub)] if gates else key


def _all_differences(run: Run) -> list[Differences]:
    """One entry per variant; those without a difference, of which the same is to be said, share one at the end."""
    found = [_differences(run, variant) for variant in run.drafted]
    same: dict[str, list[str]] = {}
    for each in found:
        if not each.shown:
            same.setdefault(each.told, []).append(each.label)
    alike = [Differences(names.listed(labels, "and"), told, [], []) for told, labels in same.items()]
    return [*(each for each in found if each.shown), *alike]


def _differences(run: Run, variant: str) -> Differences:
    match = run.match[variant]
    order = sorted(match.differences, key=lambda found: (found.verdict != "fault", -(found.margin_nats or 0.0)))
    partings = [_parting(found) for found in order]
    shown = max(SHOWN_DIFFERENCES, sum(parting.is_fault for parting in partings))
    return Differences(names.variant_label(variant), _told(match), partings[:shown], partings[shown:])


def _parting(found: Difference) -> Parting:
    return Parting(
        where=f"{found.id}, token {found.position + 1}",
        margin="margin unknown" if found.margin_nats is None else f"margin {found.margin_nats:.2f} nats",
        is_fault=found.verdict == "fault",
        before="… " + _one_line(found.context_before),
        base=_one_line(found.base_after) or "(end of reply)",
        draft=_one_line(found.draft_after) or "(end of reply)",
    )


def _one_line(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ↵ ", text).strip(" ")


def _told(match: MatchFile) -> str:
    benign = [found for found in match.differences if found.verdict != "fault"]
    if not match.differences:
        return f"All {match.total} replies are identical, token by token."
    told = f"{len(match.differences)} of {match.total} replies differ. "
    if benign:
        limit = "" if match.near_tie_nats is None else f", less than {match.near_tie_nats:g} nats apart"
        largest = max(found.margin_nats or 0.0 for found in benign)
        who = str(len(benign)) if match.faults else "All"
        told += (
            f"{who} part where the verifier's two likeliest tokens nearly tie{limit} "
            f"(at most {largest:.2f} here): steps of another number of rows round otherwise, and that decides. "
        )
    if match.rounding is not None and match.rounding.largest_nats is not None:
        told += (
            f"On the {match.rounding.tokens:,} tokens that both runs wrote where the gap is below "
            f"{match.rounding.below_nats:g} nats it differs between them by up to {match.rounding.largest_nats:.2f}. "
        )
    if not match.faults:
        return f"{told}None is a fault."
    verb = "parts" if match.faults == 1 else "part"
    return f"{told}{match.faults} {verb} elsewhere: the engine emitted what the verifier would not say."


def _definitions(results: Results) -> list[metrics.Metric]:
    used = {wording.base_name(row.metric) for row in results.rows}
    return [metric for name, metric in metrics.METRICS.items() if name in used]


def _command(run: Run, provenance: dict[str, Any]) -> list[str]:
    commits = [commit for commit in provenance["commits"] if commit]
    checkout = [f"git checkout {commits[0]}"] if len(commits) == 1 else []
    scale = {"full": "", "smoke": " SMOKE=1", "mini": " MINI=1"}[run.scale]
    ready = f"# once that has set up the environment: snakemake --cores all reproduce_{run.reproduction.target}"
    return [*checkout, f"make reproduce NAME={run.reproduction.name}{scale}", ready]


def make_provenance(run: Run) -> dict[str, Any]:
    """Content of provenance.json: what holds for the whole run, then every file's own provenance in full."""
    last = max(run.provenance.values(), key=lambda found: found.finished_at)
    dirty = {found.dirty for found in run.provenance.values()}
    return {
        "reproduction": run.reproduction.name,
        "target": run.reproduction.target,
        "scale": run.scale,
        "verifier": run.reproduction.verifier.id,
        "commits": list(dict.fromkeys(found.commit for found in run.provenance.values())),
        "dirty": True if True in dirty else None if None in dirty else False,
        "finished_at": last.finished_at,
        "hardware": last.hardware.model_dump(),
        "versions": last.versions,
        "files": {
            name: {"sha256": run.sha256[name], "provenance": found.model_dump(mode="json")}
            for name, found in run.provenance.items()
        },
    }
