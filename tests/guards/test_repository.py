"""What stands in the repository: no path of one machine, no secret, no registry; commands of the pages that exist."""

import re
from pathlib import Path

import pytest

from harness.codeversion import _file_of
from harness.config import load_all
from tests.guards.sources import ROOT, kept_files, text_of

LOCKS = [Path("requirements/cpu.lock"), Path("requirements/cuda.lock")]
TEXTS = (".py", ".md", ".smk", ".yaml", ".yml", ".toml", ".sh", ".in", ".txt", ".json", ".csv", ".html", "")
MACHINE_PATH = re.compile(r"(?<![\w.])/(home|root|work|Users|mnt|workspace)/[\w.-]+")
SECRET = re.compile(r"\b(hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9]{30,}|AKIA[A-Z0-9]{16})\b")
REGISTRY = re.compile(r"\b(pypi\.org|pythonhosted\.org|registry\.npmjs\.org|deb\.debian\.org|anaconda\.org)\b")


def _lines() -> list[tuple[Path, int, str]]:
    kept = [
        path
        for path in kept_files()
        if path.suffix in TEXTS and path not in LOCKS and path.parts[:2] != ("tests", "guards")
    ]
    return [(path, number, line) for path in kept for number, line in enumerate(text_of(path).splitlines(), 1)]


@pytest.mark.parametrize("pattern", [MACHINE_PATH, SECRET, REGISTRY], ids=["machine path", "secret", "registry"])
def test_no_file_tells_of_one_machine_its_secrets_or_its_registries(pattern: re.Pattern):
    allowed = "someone"  # a made-up user in tests
    found = [f"{path}:{number}: {line.strip()[:100]}" for path, number, line in _lines()
             if pattern.search(line) and allowed not in line]  # fmt: skip
    assert not found


def test_the_patterns_find_what_they_are_for():
    assert MACHINE_PATH.search("read /home/ann/x") and not MACHINE_PATH.search("https://a.b/home/x")
    assert SECRET.search("hf_" + "a" * 34) and REGISTRY.search("https://" + ".".join(("pypi", "org")) + "/simple")


@pytest.mark.parametrize("lock", LOCKS, ids=str)
def test_a_lock_names_no_host_and_pins_every_package_by_hash(lock: Path):
    text = text_of(lock)
    assert "://" not in text and "--index-url" not in text and "--find-links" not in text
    packages = re.findall(r"^[a-z0-9][\w.-]*(?:\[[^]]*\])?==\S+( \\)?$", text, flags=re.MULTILINE)
    assert len(packages) > 200 and all(packages), "each line with a version goes on with its hashes"


def test_both_locks_hold_the_same_tools():
    tools = ("snakemake", "guidellm", "lm-eval", "transformers", "safetensors", "numpy", "pytest", "ruff")
    pins = [
        dict(re.findall(r"^([a-z0-9-]+)(?:\[[^]]*\])?==(\S+)", text_of(lock), flags=re.MULTILINE)) for lock in LOCKS
    ]
    assert {tool: pins[0][tool] for tool in tools} == {tool: pins[1][tool] for tool in tools}


def _documents() -> list[Path]:
    return [path for path in kept_files() if path.suffix == ".md"]


def _commands(path: Path) -> list[str]:
    """Our commands on a page: whole lines of code (fenced or indented) and code within a line."""
    lines = [line.strip().removeprefix("$ ") for line in text_of(path).splitlines()]
    inline = re.findall(r"`((?:make|snakemake|python -m) [^`]+)`", text_of(path))
    return [line for line in [*lines, *inline] if re.match(r"(make [a-z-]+($| |=)|snakemake --|python -m )", line)]


def _fault(command: str, make_targets: set[str], runs: set[str]) -> str | None:
    words = command.split("#")[0].split()
    if words[0] == "make":
        wrong = [word for word in words[1:] if re.fullmatch(r"[a-z][a-z-]*", word) and word not in make_targets]
    elif words[0] == "snakemake":
        targets = [word.partition("_") for word in words if word.startswith(("reproduce_", "gate_"))]
        wrong = ["".join(parts) for parts in targets if parts[2] not in runs]
    else:
        ours = words[2].split(".")[0] in ("harness", "reports", "benchmarks", "algorithms")
        wrong = [words[2]] if ours and "<" not in words[2] and _file_of(words[2]) is None else []
    return f"{command}: {wrong[0]} is not there" if wrong else None


def test_every_command_in_the_documents_exists():
    make_targets = set(re.findall(r"^([a-z][a-z-]*):", text_of(Path("Makefile")), flags=re.MULTILINE))
    runs = set(load_all())
    made_up = re.compile(r"<|\.\.\.|my_")
    real = [(path, command) for path in _documents() for command in _commands(path) if not made_up.search(command)]
    assert not [f"{path}: {fault}" for path, command in real if (fault := _fault(command, make_targets, runs))]


def test_the_readme_gives_the_commands_that_a_newcomer_needs():
    commands = " ".join(_commands(Path("README.md")))
    assert all(word in commands for word in ("make reproduce", "make test", "snakemake --cores all reproduce_"))


def test_links_between_documents_lead_somewhere():
    broken = []
    for path in _documents():
        for link in re.findall(r"\]\((?!https?://|#|mailto:)([^)\s#]+)", text_of(path)):
            if not (ROOT / path.parent / link).exists():
                broken.append(f"{path}: {link}")
    assert not broken


def test_nothing_large_and_nothing_generated_is_kept():
    large = [f"{path}: {size} bytes" for path in kept_files() if (size := (ROOT / path).stat().st_size) > 1_000_000]
    generated = [
        str(path) for path in kept_files() if path.parts[0] in ("models", "results", "logs", ".venv", ".snakemake")
    ]
    assert not large and not generated
