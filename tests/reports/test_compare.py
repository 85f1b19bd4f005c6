"""Several runs on one page: what is told apart, what is not judged, and what is refused."""

import csv
import re
import shutil
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.tables import table_record
from reports.__main__ import report_main
from reports.compare import compare, compare_main, load_source
from tests.reports.synthetic import ALGORITHM, NAME, change


def edited(finished, folder, edit, **known):
    """A copy of the finished run's table in `folder`, its rows changed by `edit`, and provenance.json by `known`."""
    folder.mkdir(parents=True)
    shutil.copy(finished / "provenance.json", folder)
    with (finished / "results.csv").open(newline="") as source:
        rows = list(csv.DictReader(source))
    for row in rows:
        edit(row)
    with (folder / "results.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    known["table"] = table_record(folder / "results.csv")
    change(folder / "provenance.json", lambda content: content.update(known))
    return folder


def shifted(metric, by):
    """An edit that moves one metric of the draft, interval and all."""

    def edit(row: dict) -> None:
        if row["metric"] == metric and row["variant"] == ALGORITHM and row["value"]:
            row.update({key: str(float(row[key]) + by) for key in ("value", "low", "high") if row[key]})

    return edit


def cells(table, variant, label):
    """The texts of a row of a table."""
    return next([cell.text for cell in row] for row in table.rows if row[0].text == variant and row[1].text == label)


def test_a_run_against_itself_is_not_told_apart_anywhere(finished):
    page = compare([load_source(finished, letter) for letter in "AB"])
    verdicts = {row[-1].text for table in (page.key, page.rest) for row in table.rows}
    assert verdicts <= {"not told apart", "no interval", "–"}
    assert re.search(r"B against A: 0 of \d+ figures with intervals differ beyond them", " ".join(page.summary))


def test_a_lost_half_token_is_told_apart_and_named(finished, tmp_path):
    worse = edited(finished, tmp_path / "worse", shifted("acceptance_length", -0.5))
    page = compare([load_source(finished, "A"), load_source(worse, "B")])
    assert cells(page.key, ALGORITHM, "Acceptance length")[-2:] == ["−0.500", "worse"]
    assert f"{ALGORITHM}, acceptance length (word problems) −0.500, worse" in " ".join(page.summary)


def test_scales_are_labelled_and_not_judged(finished, tmp_path):
    smoke = edited(finished, tmp_path / "smoke", lambda row: row.update(scale="smoke"))
    page = compare([load_source(finished, "A"), load_source(smoke, "B")])
    assert page.summary[0] == f"1 full run and 1 smoke run of {NAME}."
    assert "Figures of different scales stand side by side and are not judged" in page.summary[1]
    assert {column.group for column in page.key.columns} == {"", "full run", "smoke run"}
    judged = {row[-1].text for row in page.key.rows}
    assert judged <= {"not judged: smoke run against full run", "–"}


def test_other_machines_versions_and_uncommitted_changes_are_warned_about(finished, tmp_path):
    other = edited(
        finished, tmp_path / "o", lambda row: row.update(machine="64 cores", versions="vllm 0.33"), dirty=True
    )
    page = compare([load_source(finished, "A"), load_source(other, "B")])
    told = " ".join(page.warnings)
    assert "different machines" in told and "different versions" in told and "B was measured with uncommitted" in told
    assert cells(page.key, ALGORITHM, "Speed-up, 1 request at once")[-1] == "not judged: another machine"


def test_other_settings_are_warned_about_with_their_number(finished, tmp_path):
    def edit(row: dict) -> None:
        if row["metric"] == "acceptance_length" and row["variant"] == ALGORITHM:
            row["settings_sha256"] = "cd" * 32

    other = edited(finished, tmp_path / "other", edit)
    page = compare([load_source(finished, "A"), load_source(other, "B")])
    assert re.search(r"B has other settings than A behind 2 of \d+ common figures", " ".join(page.warnings))


def test_three_runs_have_a_column_each_and_changes_against_the_first(finished, tmp_path):
    more = edited(finished, tmp_path / "more", shifted("acceptance_length", 0.5))
    page = compare([load_source(path, letter) for path, letter in zip((finished, more, finished), "ABC", strict=True)])
    assert [column.label for column in page.key.columns] == [
        "Variant", "Figure", "Benchmark", "A", "B", "C", "B against A", "Verdict", "C against A", "Verdict",
    ]  # fmt: skip
    row = cells(page.key, ALGORITHM, "Acceptance length")
    assert (row[7], row[9]) == ("better", "not told apart")


def test_the_files_are_written_without_network_or_absolute_paths(finished, tmp_path):
    out = tmp_path / "out"
    assert compare_main([str(finished), str(finished), "--out", str(out)]) == 0
    page = (out / "comparison.html").read_text()
    assert "default-src 'none'" in page
    assert str(finished.parent) not in page
    assert (out / "comparison.md").read_text().startswith("# Runs compared\n\n2 full runs of")
    rows = list(csv.DictReader((out / "comparison.csv").open()))
    assert {row["verdict"] for row in rows} <= {"not told apart", "no interval"}
    assert {(row["from_scale"], row["to_scale"]) for row in rows} == {("full", "full")}


def test_a_kept_table_is_taken_with_its_provenance(finished, tmp_path):
    shutil.copy(finished / "results.csv", tmp_path / "kept.csv")
    with pytest.raises(UserError, match=r"provenance\.json: no such file, and no table is compared without provenance"):
        load_source(tmp_path / "kept.csv", "A")
    shutil.copy(finished / "provenance.json", tmp_path / "kept.provenance.json")
    assert load_source(tmp_path / "kept.csv", "A").label == f"A: {NAME}, full run"


@pytest.mark.parametrize(("arguments", "said"), [(["one"], "1 given"), (["one", "two"], "no such file")])
def test_what_cannot_be_compared_is_one_line(workplace, arguments, said):
    with pytest.raises(UserError, match=said):
        compare_main([*arguments, "--out", "out"])


def cut(finished, folder, text):
    """A results folder whose table holds `text`, with the provenance of the finished run."""
    folder.mkdir()
    shutil.copy(finished / "provenance.json", folder)
    (folder / "results.csv").write_text(text)
    return folder


def test_a_damaged_value_is_named_by_its_row(finished, tmp_path):
    heading, first, *_ = (finished / "results.csv").read_text().splitlines()
    cells = first.split(",")
    cells[4] = "much"
    folder = cut(finished, tmp_path / "damaged", f"{heading}\n{','.join(cells)}\n")
    with pytest.raises(UserError, match=r"results\.csv: row 1: damaged.* Fix: "):
        load_source(folder, "A")


def test_a_table_cut_between_lines_is_refused_by_its_provenance_and_taken_where_an_earlier_one_says_nothing(
    finished, tmp_path
):
    lines = (finished / "results.csv").read_text().splitlines(keepends=True)
    folder = cut(finished, tmp_path / "cut", "".join(lines[:-5]))
    with pytest.raises(UserError, match=rf"{len(lines) - 6} rows, not the {len(lines) - 1} of its provenance.*Fix: "):
        load_source(folder, "A")
    change(folder / "provenance.json", lambda content: content.pop("table"))
    assert len(load_source(folder, "A").results.rows) == len(lines) - 6


def test_a_changed_figure_is_refused_by_the_provenance(finished, tmp_path):
    text = (finished / "results.csv").read_text()
    folder = cut(finished, tmp_path / "changed", text.replace("27.4", "37.4"))
    with pytest.raises(UserError, match=r"results\.csv: .* of its provenance, or changed"):
        load_source(folder, "A")


def test_what_is_no_table_is_called_that_before_its_provenance_is_asked_for(tmp_path):
    (tmp_path / "README.md").write_text("# Title\n\nText, more text.\n")
    with pytest.raises(UserError, match=r"README\.md: no results table\. Fix: "):
        load_source(tmp_path / "README.md", "A")


def test_without_a_folder_the_changes_are_printed(finished, tmp_path, capsys):
    worse = edited(finished, tmp_path / "worse", shifted("acceptance_length", -0.5))
    assert compare_main([str(finished), str(worse)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1] == f"B: {NAME}, full run (worse)"
    assert any(f"{ALGORITHM}, acceptance length (word problems) −0.500, worse" in line for line in said)


@pytest.mark.usefixtures("undrawn")
def test_the_report_of_a_run_can_be_compared_at_once(smoke_results):
    report_main(["--results", str(smoke_results), "--reproduction", NAME, "--out", str(smoke_results / "report")])
    assert compare_main([str(smoke_results), str(smoke_results), "--out", "comparison"]) == 0
    assert "smoke run" in Path("comparison/comparison.html").read_text()
