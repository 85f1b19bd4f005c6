"""The results table as text: what is whole is read as it is, what is cut anywhere is refused with file and line."""

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.tables import check_table, read_table, table_record

TABLE = 'variant,metric,value,note\neagle3,length,3.1,"not run: a, b"\nngram,length,1.8,\u2028 and more\n'


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "results.csv"
    path.write_text(TABLE)
    return path


def test_a_whole_table_is_read_with_every_column(table: Path):
    assert [list(row.values()) for row in read_table(table)] == [
        ["eagle3", "length", "3.1", "not run: a, b"],
        ["ngram", "length", "1.8", "\u2028 and more"],
    ]


def test_a_table_cut_at_any_character_is_refused(table: Path):
    record = {"table": table_record(table)}
    check_table(table, record)
    for length in range(len(TABLE)):
        table.write_text(TABLE[:length])
        with pytest.raises(UserError, match=r"results\.csv: .*Fix: "):
            check_table(table, record)


@pytest.mark.parametrize("row", ["eagle3,length", "eagle3,length,3.1,note,more", '"eagle3,length,3.1,note'])
def test_a_row_with_fields_too_few_or_too_many_is_named_by_its_line(table: Path, row: str):
    table.write_text(f"variant,metric,value,note\nngram,length,1.8,\n{row}\n")
    with pytest.raises(UserError, match=r"results\.csv: line 3: damaged.*Fix: "):
        read_table(table)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"# Title\n"])
def test_another_file_is_called_no_results_table(table: Path, content: bytes):
    table.write_bytes(content)
    with pytest.raises(UserError, match="no results table"):
        read_table(table)


def test_a_provenance_of_an_earlier_version_says_nothing_of_the_table(table: Path):
    check_table(table, {"target": "toy"})
