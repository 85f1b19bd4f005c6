"""How commands end: the exit code and the one line that a person reads."""

import errno

import pytest

from harness.errors import UserError, run_command


def _ended(capsys: pytest.CaptureFixture, main) -> tuple[object, str]:
    with pytest.raises(SystemExit) as ended:
        run_command(main)
    return ended.value.code, capsys.readouterr().err


def _raises(error: BaseException):
    def main() -> None:
        raise error

    return main


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1)])
def test_the_value_of_main_is_the_exit_code(capsys: pytest.CaptureFixture, returned: int | None, code: int):
    assert _ended(capsys, lambda: returned) == (code, "")


def test_a_mistake_of_the_user_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture):
    code, said = _ended(capsys, _raises(UserError("models/x: no such folder. Fix: make it")))
    assert (code, said) == (2, "error: models/x: no such folder. Fix: make it\n")


def test_a_full_disk_is_told_as_such(capsys: pytest.CaptureFixture):
    code, said = _ended(capsys, _raises(OSError(errno.ENOSPC, "No space left", "results/x")))
    assert code == 2
    assert said.startswith("error: results/x: the disk is full. Fix: free some space") and said.count("\n") == 1


def test_an_interruption_exits_130_and_says_that_work_is_kept(capsys: pytest.CaptureFixture):
    code, said = _ended(capsys, _raises(KeyboardInterrupt()))
    assert code == 130 and "run the same command to go on" in said


@pytest.mark.parametrize(
    ("refused", "wanted"),
    [
        (OSError(errno.EACCES, "Permission denied", "a/x"), "a/x: permission denied. Fix: allow access to it"),
        (OSError(errno.EROFS, "Read-only file system", "a/.x.md.b-12.partial"), "a/x.md: read-only file system. Fix:"),
        (
            NotADirectoryError(errno.ENOTDIR, "Not a directory", "README.md/x"),
            "README.md/x: not a directory. Fix: give",
        ),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "output: the disk is full. Fix:"),
    ],
)
def test_what_the_machine_refuses_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture, refused, wanted):
    code, said = _ended(capsys, _raises(refused))
    assert code == 2 and wanted in said and said.count("\n") == 1


@pytest.mark.parametrize("defect", [ValueError("ours"), OSError(errno.EIO, "Input/output error", "x")])
def test_a_defect_of_ours_keeps_its_traceback(defect: Exception):
    with pytest.raises(type(defect)):
        run_command(_raises(defect))
