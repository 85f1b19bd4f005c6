"""JSON files of others: an object, or one line that names the file."""

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.jsonfile import NESTED_MAX, read_object


def _nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def test_an_object_is_read_whatever_the_locale(tmp_path: Path):
    (tmp_path / "x.json").write_text('{"a": "é"}', encoding="utf-8")
    assert read_object(tmp_path / "x.json") == {"a": "é"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 200_000, "not JSON"),
        (_nested(NESTED_MAX + 1), "nested more than 100 levels deep"),
        ("[1]", "holds a list, not an object"),
        ("{", "not JSON"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"),
        (b"\xff\xfe", "not JSON"),
    ],
    ids=["brackets", "deep", "list", "cut", "digits", "bytes"],
)
def test_what_is_no_object_is_one_line_with_the_fix_that_was_given(tmp_path: Path, content: str | bytes, said: str):
    path = tmp_path / "x.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        read_object(path, "Fix: ask again")
    told = str(caught.value)
    assert told.startswith(f"{path}: ") and said in told and told.endswith("Fix: ask again") and "\n" not in told


def test_as_deep_as_is_allowed_is_read(tmp_path: Path):
    (tmp_path / "x.json").write_text(_nested(NESTED_MAX))
    assert "a" in read_object(tmp_path / "x.json")


def test_a_file_where_a_folder_is_asked_for_is_called_so(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"/config\.json: is a file\. Fix: give the folder that holds it"):
        read_object(tmp_path / "config.json" / "config.json")
    with pytest.raises(UserError, match="is a folder, not a file"):
        read_object(tmp_path)
