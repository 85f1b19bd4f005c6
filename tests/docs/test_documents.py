"""What stands in the documents is true: commands parse, definitions are current, recipes and code on the pages work."""

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

import algorithms
from harness.config import load_reproduction
from reports import rows
from reports.collect import Run, load_run
from reports.formats import Benchmark
from reports.glossary import PAGE, renewed
from reports.metrics import METRICS, Metric
from tests.dag import plugins
from tests.docs.pages import blocks, commands, documents, files
from tests.guards.sources import ROOT, text_of
from tests.reports import synthetic

pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")

ADD_A_VERIFIER = Path("docs/add-a-verifier.md")
ADD_A_METRIC = Path("docs/add-a-metric.md")
ADD_A_DATA_SET = Path("docs/add-a-data-set.md")
OURS = ("harness", "reports", "benchmarks", "algorithms")
VALUED = ("--cores", "--rerun-triggers", "--profile", "--workflow-profile", "--executor", "--jobs", "--resources")
MANY_VALUED = {"--rerun-triggers", "--quiet", "--set-resources", "--forcerun"}
WORKFLOW = Path("docs/ci/specproof-gate.yml")


Called = tuple[str, tuple[str, ...], tuple[str, ...]]  # module, subcommand, flags


def _module_commands() -> list[Called]:
    """Every `python -m <ours> ...` of every page, once for the same flags."""
    found = {_split(command.words) for page in documents() for command in commands(page) if "-m" in command.words}
    return sorted(called for called in found if called[0].split(".")[0] in OURS)


def _split(words: tuple[str, ...]) -> Called:
    at = words.index("-m") + 1
    rest = words[at + 1 :]
    plain = rest[:1] if rest and re.fullmatch(r"[a-z]+", rest[0]) else ()
    return words[at], plain, tuple(sorted(word.split("=")[0] for word in rest if word.startswith("--")))


def _help(module: str, subcommand: tuple[str, ...]) -> str:
    """What `python -m module subcommand --help` prints, in this process: imports are paid once."""
    out = io.StringIO()
    argv, sys.argv = sys.argv, [module, *subcommand, "--help"]
    try:
        with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        sys.argv = argv
    assert ended.value.code in (0, None), out.getvalue()
    return out.getvalue()


def _name(called: Called) -> str:
    return " ".join([called[0], *called[1], *called[2]])


def _check(called: Called) -> None:
    module, subcommand, flags = called
    if module == "harness.runlock":  # takes no arguments
        assert not flags and not subcommand
        return
    if module.startswith("harness.serving"):  # its arguments are vLLM's
        return
    told = _help(module, subcommand)
    missing = [flag for flag in flags if flag not in told]
    assert not missing, f"{_name(called)}: no {missing} in\n{told}"


@pytest.mark.parametrize("called", _module_commands(), ids=_name)
def test_a_command_on_a_page_parses(called: Called):
    _check(called)


def test_the_pages_hold_commands_of_all_kinds():
    assert len(_module_commands()) >= 10
    found = {command.words[0] for page in documents() for command in commands(page)}
    assert {"make", "snakemake", "python"} <= found


def test_no_target_stands_where_snakemake_takes_it_for_the_value_of_a_flag():
    taken = [
        (command.text, word)
        for page in documents()
        for command in commands(page)
        for flag in MANY_VALUED & {*command.words}
        for word in takewhile(lambda word: not word.startswith("-"), command.words[command.words.index(flag) + 1 :])
    ]
    assert taken and not [each for each in taken if "_" in each[1]]


def _snakemake_calls() -> dict[tuple[str, ...], list[str]]:
    """Targets of all Snakemake commands of all pages, by the flags they are given with."""
    found: dict[tuple[str, ...], list[str]] = {}
    for command in (command for page in documents() for command in commands(page)):
        if "snakemake" not in command.words:
            continue
        words = command.words[command.words.index("snakemake") + 1 :]
        is_target = [not word.startswith("-") and before not in VALUED
                     for before, word in zip(("", *words), words, strict=False)]  # fmt: skip
        flags = tuple(word for word, target in zip(words, is_target, strict=True) if not target)
        targets = [word for word, target in zip(words, is_target, strict=True) if target]
        # One run of a recipe stands for all: a guard knows their names, tests of the DAG plan every one.
        others = [target for target in found.get(flags, []) if not target.startswith("reproduce_")]
        found[flags] = sorted({*others, *targets})
    return found


@pytest.mark.slow
def test_every_snakemake_command_on_a_page_is_one_that_snakemake_takes(tmp_path: Path):
    plugins.write(tmp_path)  # of clusters: a dry run needs their names alone
    for flags, targets in _snakemake_calls().items():
        words = ["snakemake", *targets, *flags, "--dry-run", "--quiet", "all"]
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_every_algorithm_has_its_page_with_idea_deviations_and_status(name: str):
    page = text_of(Path("algorithms", name, "README.md"))
    assert page.startswith("# ") and re.search(r"arXiv|speculators", page)
    for heading in ("## Idea", "## Read it", "Deviations", "## Status"):
        assert heading in page, heading


def test_the_definitions_of_the_metrics_are_those_of_the_code():
    page = text_of(PAGE)
    assert renewed(page) == page, "run python -m reports.glossary"
    assert all(f"### `{name}`" in page for name in METRICS)


def test_the_page_of_metrics_counts_its_example_right():
    steps = [0, 1, 2, 3]
    length = 1 + sum(steps) / len(steps)
    rates = [sum(count >= position for count in steps) / len(steps) for position in (1, 2, 3)]
    assert (length, rates) == (2.5, [3 / 4, 2 / 4, 1 / 4]) and 1 + sum(rates) == length
    assert f"= {length}" in text_of(PAGE) and "3/4, 2/4, 1/4" in text_of(PAGE)
    emitted = [count + 1 for count in steps[:-1]] + [2]  # the last step ends behind its second draft
    assert f"{' + '.join(map(str, emitted))} tokens in 4 steps, {sum(emitted) / len(emitted)}" in text_of(PAGE)


def test_the_recipe_on_the_page_of_verifiers_is_a_recipe(tmp_path: Path):
    text = blocks(ADD_A_VERIFIER, "yaml")[0]
    (tmp_path / "my_model").mkdir()
    (tmp_path / "my_model" / "reproduction.yaml").write_text(text)
    assert load_reproduction("my_model", folder=tmp_path).target == "my_model"


def test_the_generator_on_the_page_of_data_sets_keeps_its_splits_apart():
    written = files(ADD_A_DATA_SET)
    space: dict = {}
    exec(compile(written["harness/data/my_set.py"], "my_set.py", "exec"), space)
    train, heldout = (list(space["sums"](split, 1)) for split in (False, True))
    questions = [{messages[-1]["content"] for _, messages, _ in side} for side in (train, heldout)]
    assert questions[0] and questions[1] and not questions[0] & questions[1]
    assert train == list(space["sums"](False, 1)) and train != list(space["sums"](False, 2))
    for _, messages, answer in train[:20]:
        x, y = map(int, re.findall(r"\d+", messages[0]["content"]))
        assert answer.endswith(f"#### {x + y}")
    assert yaml.safe_load(written["harness/evaluation/tasks/sums.yaml"])["task"] == "specproof_sums"


def test_the_figure_on_the_page_of_metrics_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    described, yielded = blocks(ADD_A_METRIC, "python")
    [(name, metric)] = eval("{" + described + "}", {"Metric": Metric}).items()
    monkeypatch.setitem(METRICS, name, metric)
    space: dict = {"Figure": rows.Figure}
    exec(f"def added(name, benchmark, steps):\n    {yielded}", space)
    usual = rows._drafted

    def drafted(run: Run, variant: str, where: str, benchmark: Benchmark) -> Iterator[rows.Figure]:
        yield from usual(run, variant, where, benchmark)
        yield from space["added"](where, benchmark, benchmark.drafts)

    monkeypatch.setattr(rows, "_drafted", drafted)
    monkeypatch.chdir(tmp_path)
    synthetic.write_reproduction(Path("reproductions"))
    found = rows.make_rows(load_run(synthetic.write_run(Path("results")), synthetic.NAME))
    assert found.value(synthetic.ALGORITHM, name, "word_problems") == synthetic.POSITIONS
    assert f"`{name}`" not in text_of(PAGE), "the example is no metric here"


def test_the_workflow_pins_its_actions_and_its_scripts_parse():
    workflow = yaml.safe_load(text_of(WORKFLOW))
    steps = workflow["jobs"]["gate"]["steps"]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used)
    assert workflow["permissions"] == {"contents": "read"}
    for step in steps:
        if "run" in step:
            subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)
            assert "${{" not in step["run"], "expressions reach a script as environment only"


def test_the_gate_of_the_workflow_is_called_with_flags_that_it_has():
    steps = yaml.safe_load(text_of(WORKFLOW))["jobs"]["gate"]["steps"]
    run = next(step["run"] for step in steps if step["name"] == "Verdict")
    told = _help("reports.gate", ())
    assert set(re.findall(r"--[a-z-]+", run)) <= set(re.findall(r"--[a-z-]+", told))


def test_the_hooks_run_the_checks_of_make_lint():
    hooks = yaml.safe_load(text_of(Path(".pre-commit-config.yaml")))["repos"][0]["hooks"]
    entries = {re.sub(r" (--force-exclude|-q|tests/guards|\.)(?= |$)", "", hook["entry"]) for hook in hooks}
    lint = re.search(r"^lint: setup\n((?:\t.+\n)+)", text_of(Path("Makefile")), flags=re.MULTILINE)
    assert lint
    for line in lint[1].splitlines():
        wanted = line.strip().removeprefix("$(RUN) ").removesuffix(" .").removesuffix(" Snakefile harness/rules")
        assert any(entry.endswith(f".venv/bin/python {wanted}") for entry in entries), wanted


def test_the_citation_says_the_version_and_the_licence():
    citation = yaml.safe_load(text_of(Path("CITATION.cff")))
    project = text_of(Path("pyproject.toml"))
    assert f'version = "{citation["version"]}"' in project and f'license = "{citation["license"]}"' in project
    assert text_of(Path("LICENSE")).lstrip().startswith("Apache License")
    assert f"## {citation['version']}" in text_of(Path("CHANGELOG.md"))
