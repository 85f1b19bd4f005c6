"""Files are whole or absent, whatever interrupts their writing."""

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.files import file_sha256, json_sha256, read_jsonl, replacing, replacing_folder, write_json, write_jsonl


def test_a_file_appears_whole_and_replaces_the_old_one(tmp_path: Path):
    path = tmp_path / "deep" / "x.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": "é"})
    assert path.read_text() == '{\n  "a": "é"\n}\n'
    assert [each.name for each in path.parent.iterdir()] == ["x.json"]


def test_a_failure_keeps_the_old_file_and_leaves_nothing_beside_it(tmp_path: Path):
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path):
    folder = tmp_path / "out"
    for name in ("first", "second"):
        with replacing_folder(folder) as partial:
            (partial / name).write_text("x")
    assert [each.name for each in folder.iterdir()] == ["second"]
    with pytest.raises(RuntimeError), replacing_folder(folder) as partial:
        (partial / "third").write_text("x")
        raise RuntimeError
    assert [each.name for each in folder.iterdir()] == ["second"] and list(tmp_path.iterdir()) == [folder]


def test_a_kill_in_the_middle_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "x"
    path.write_text("old")
    code = (
        "import os, signal, sys; from pathlib import Path; from harness.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as partial:\n"
        "    partial.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(path)], check=False, env=os.environ | {"PYTHONPATH": "."})
    assert killed.returncode == -signal.SIGKILL and path.read_text() == "old"


def test_rows_come_back_as_they_were_written(tmp_path: Path):
    rows = [{"id": "a", "text": "line\nbreak \u2028 é"}, {"id": "b", "text": None}]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    assert read_jsonl(tmp_path / "rows.jsonl") == rows


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_json_does_not_have_is_refused_and_leaves_no_file(tmp_path: Path, value: float):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"a": value})
    assert list(tmp_path.iterdir()) == []


def test_hashes_are_those_of_the_content(tmp_path: Path):
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    # The test vector of FIPS 180-2.
    assert file_sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert json_sha256({"b": 1, "a": [2]}) == json_sha256({"a": [2], "b": 1}) != json_sha256({"a": [2], "b": 2})


def test_what_a_killed_writer_left_is_removed_and_a_living_one_is_left_alone(tmp_path: Path):
    with replacing(tmp_path / "rows.jsonl") as mine:
        start = mine.name.removesuffix(f"{os.getpid()}.partial")
    dead, alive, elsewhere = (
        tmp_path / name for name in (f"{start}999999999.partial", f"{start}1.partial", ".rows.jsonl.b-99999999.partial")
    )
    for left in (dead, alive, elsewhere):
        left.write_text("half")
    write_jsonl(tmp_path / "rows.jsonl", [{"a": 1}])
    assert not dead.exists() and alive.exists() and elsewhere.exists()


def test_what_is_written_can_be_read_by_others(tmp_path: Path):
    with replacing_folder(tmp_path / "draft") as partial:
        (partial / "x").touch(mode=0o600)
    assert (tmp_path / "draft/x").stat().st_mode & 0o777 == 0o644


def test_a_place_where_nothing_can_be_made_is_named_as_it_was_given(tmp_path: Path):
    (tmp_path / "file").write_text("kept")
    for path, said in (
        (tmp_path, "is a folder. Fix: give a file"),
        (Path("/proc/x"), "cannot be written"),
        (tmp_path / "file" / "x.json", "cannot be written"),
        (tmp_path / ("x" * 250), "cannot be written (file name too long)"),
    ):
        with pytest.raises(UserError) as caught:
            write_json(path, {})
        assert str(caught.value).startswith(f"{path}: {said}") and "partial" not in str(caught.value)
    with pytest.raises(UserError, match=r"file: is a file\. Fix: give a folder"), replacing_folder(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_text() == "kept" and len(list(tmp_path.iterdir())) == 1
