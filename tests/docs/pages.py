"""The project's documents taken apart: commands, code blocks, and the files that a page tells its reader to write."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.guards.sources import kept_files, text_of

COMMAND = re.compile(r"^(?:make|snakemake|python -m|\S*/python -m) ")
PLACEHOLDER = re.compile(r"<|\.\.\.|my_|one_step|\b(DRAFT|VERIFIER|RUN_A|RUN_B|RESULTS|FILE|NAME)\b")
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    """Every page of the repository."""
    return [path for path in kept_files() if path.suffix == ".md"]


@dataclass(frozen=True)
class Command:
    """One command of ours on a page, as words."""

    page: Path
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        return shlex.join(self.words)


def commands(page: Path) -> Iterator[Command]:
    """Commands that stand in code: whole lines, and code within a line. Those with a placeholder are left out."""
    text = text_of(page)
    lines = [line.strip().removeprefix("$ ") for line in text.splitlines()]
    inline = [" ".join(code.split()) for code in re.findall(r"`([^`\n]+(?:\n[^`\n]+)?)`", text)]
    for line in [*lines, *inline]:
        line = line.removeprefix("cd ../second && ")
        if COMMAND.match(line) and not PLACEHOLDER.search(line):
            yield Command(page, tuple(shlex.split(line, comments=True)))


def blocks(page: Path, language: str) -> list[str]:
    """Fenced blocks of a language, without their indentation."""
    return [_body(match) for match in FENCE.finditer(text_of(page)) if match["language"] == language]


def _body(match: re.Match) -> str:
    return "\n".join(line.removeprefix(match["indent"]) for line in match["body"].splitlines()) + "\n"


def files(page: Path) -> dict[str, str]:
    """What a page says to write, by path: a block belongs to the last file that the three lines before it name."""
    text, found = text_of(page), {}
    for match in FENCE.finditer(text):
        before = "\n".join(text[: match.start()].rstrip().splitlines()[-3:])
        if named := re.findall(r"`([\w./]+\.(?:py|yaml|yml|md))`", before):
            found[named[-1]] = _body(match)
    return found
