"""Versions of code: comments do not change them, behaviour does, and only for the steps that reach it."""

from pathlib import Path

import pytest

from harness import codeversion


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A small source tree: the step uses harness.shared.part, which uses algorithms.one; nothing uses harness.other."""
    files = {
        "harness/plumbing.py": "A = 1\n",
        "harness/step/__init__.py": "",
        "harness/step/__main__.py": '"""Says."""\nfrom harness import plumbing\nfrom harness.step.work import go\n',
        "harness/step/work.py": 'def go():\n    """Go."""\n    import harness.shared.part\n    return 1\n',
        "harness/shared/__init__.py": "",
        "harness/shared/part.py": "from algorithms.one import thing\n",
        "harness/other/__init__.py": "X = 1\n",
        "algorithms/__init__.py": "NAMES = ()\n",
        "algorithms/one/__init__.py": "thing = 1\n",
        "algorithms/one/table.csv": "1,2\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)

    def forget() -> None:
        for cached in (codeversion.versions, codeversion._parsed, codeversion._reached):
            cached.cache_clear()

    def versions() -> list[str]:
        forget()
        return codeversion.versions("harness.step.__main__")

    yield versions
    forget()


def _folders(found: list[str]) -> list[str]:
    return [each.partition("@")[0] for each in found]


def test_it_follows_every_import_and_leaves_the_plumbing_out(tree):
    assert _folders(tree()) == ["algorithms/one", "harness/shared", "harness/step"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "harness/step/work.py",
            'def go():\n    """Other words."""\n    # why\n    import harness.shared.part\n\n    return 1\n',
        ),
        ("harness/plumbing.py", "A = 2\n"),
        ("harness/other/__init__.py", "X = 2\n"),
        ("algorithms/__init__.py", "NAMES = ('one',)\n"),
        ("harness/step/README.md", "words\n"),
    ],
)
def test_words_and_code_that_the_step_does_not_reach_change_nothing(tree, name: str, text: str):
    before = tree()
    Path(name).write_text(text)
    assert tree() == before


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("harness/step/work.py", "def go():\n    import harness.shared.part\n    return 2\n", "harness/step"),
        ("algorithms/one/__init__.py", "thing = 2\n", "algorithms/one"),
        ("algorithms/one/table.csv", "1,3\n", "algorithms/one"),
    ],
)
def test_what_the_step_does_changes_the_version_of_its_folder_alone(tree, name: str, text: str, changed: str):
    before = tree()
    Path(name).write_text(text)
    assert _folders(sorted(set(tree()) - set(before))) == [changed]


def test_a_name_without_a_file_is_refused(tree):
    with pytest.raises(ValueError, match=r"harness.nothing: no such module"):
        codeversion.versions("harness.nothing")
