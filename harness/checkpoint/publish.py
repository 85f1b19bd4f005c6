"""Upload a draft with its card and provenance to the Hugging Face hub. Without --yes it only says what it would do.

The token is read from HF_TOKEN and nowhere else. Refused: a draft with faults, without a card, without provenance, or
that names its verifier by a folder; and files that hold paths of a machine or anything like a token.
"""

import argparse
import os
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harness.checkpoint.examine import examine
from harness.checkpoint.findings import Finding, Subject
from harness.checkpoint.hub import HUB_ID, asking, is_hub_id
from harness.checkpoint.lint import lint
from harness.checkpoint.lint_command import table
from harness.checkpoint.reading import weight_files
from harness.checkpoint.release import CONVERSION, read_record
from harness.checkpoint.tensor_rules import INDEX_FILE
from harness.checkpoint.verifier_facts import read_facts
from harness.checkpoint.writing import CARD, RECORD
from harness.errors import UserError
from harness.progress import log

HELP = "upload the draft with card and provenance; a dry run without --yes"
TOKEN = "HF_TOKEN"
TEXTS = (".json", ".md")
PRIVATE = {
    "a token": re.compile(r"\bhf_[A-Za-z0-9]{16,}"),
    "a path of a machine": re.compile(r"(?<![\w.])/(?:home|root|Users|tmp|work|mnt|data|scratch)/[\w.]"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of `publish`."""
    parser.add_argument("draft", type=Path, metavar="DIR", help="folder of the draft, with card and provenance")
    parser.add_argument("--repo", required=True, metavar="ORG/NAME", help="repository to create or to add to")
    parser.add_argument("--verifier", type=Path, metavar="DIR", help="folder of its verifier, to lint against")
    parser.add_argument("--private", action="store_true", help="create the repository for members only")
    parser.add_argument("--yes", action="store_true", help="upload; the token comes from HF_TOKEN")


def _client(token: str) -> Any:
    from huggingface_hub import HfApi

    return HfApi(token=token)


def files_of(draft: Path) -> list[Path]:
    """What is uploaded: what the server reads, card, provenance, licence texts; nothing else that lies there."""
    names = ["config.json", CARD, RECORD, CONVERSION, INDEX_FILE]
    there = [draft / name for name in names if (draft / name).exists()]
    return [*there, *sorted(draft.glob("LICENSE*")), *weight_files(draft)]


def _require_release(draft: Path, subject: Subject) -> None:
    """Card, provenance, and a verifier that others can find."""
    verifier = subject.config["speculators_config"]["verifier"]["name_or_path"]
    if not is_hub_id(verifier):
        raise UserError(
            f"{draft}: names its verifier by the folder {verifier!r}, which nobody else has. "
            "Fix: python -m harness.checkpoint edit with --verifier and its hub id"
        )
    if not (draft / CARD).exists():
        raise UserError(f"{draft}: no {CARD}. Fix: write it with python -m harness.checkpoint card")
    record = read_record(draft)
    if record is None or not record.says_where_from:
        raise UserError(
            f"{draft}: nothing says how its weights came to be. "
            f"Fix: python -m harness.checkpoint card with --results writes {RECORD}"
        )


def _require_clean(files: list[Path]) -> None:
    for path in files:
        if path.suffix not in TEXTS:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for what, pattern in PRIVATE.items():
                if pattern.search(line):
                    raise UserError(f"{path}: line {number} holds {what}. Fix: take it out, and make the file again")


def _plan(given: argparse.Namespace, files: list[Path], findings: list[Finding]) -> None:
    """Show what would be uploaded."""
    console = Console()
    listed = Table(title=f"to {given.repo}{' (private)' if given.private else ''}", title_justify="left")
    listed.add_column("file")
    listed.add_column("bytes", justify="right")
    for path in files:
        listed.add_row(path.name, f"{path.stat().st_size:,}")
    console.print(listed)
    others = sorted({path.name for path in given.draft.iterdir()} - {path.name for path in files})
    if others:
        console.print(f"left out: {', '.join(others)}")
    console.print(table(f"lint: {len({f.rule for f in findings})} rules, no fault", findings))
    print((given.draft / CARD).read_text(encoding="utf-8"))


def _upload(given: argparse.Namespace, files: list[Path], token: str) -> None:
    client = _client(token)
    with asking(given.repo):
        client.create_repo(given.repo, private=given.private, exist_ok=True)
        done = client.upload_folder(
            repo_id=given.repo,
            folder_path=given.draft,
            allow_patterns=[path.name for path in files],
            commit_message="Draft model in the speculators format",
        )
    log(f"{given.repo}: uploaded, {done.commit_url}")


def run(given: argparse.Namespace) -> int:
    """Publish one draft, or say what would be published."""
    if not HUB_ID.fullmatch(given.repo):
        raise UserError(f"--repo = {given.repo}: not of the form ORG/NAME. Fix: give owner and name")
    token = os.environ.get(TOKEN, "")
    if given.yes and not token:
        raise UserError(f"{TOKEN} is not set. Fix: export a token that may write to {given.repo.split('/')[0]}")
    subject = examine(str(given.draft), read_facts(given.verifier) if given.verifier else None, all_values=True)
    findings = lint(subject)
    if any(f.verdict == "fault" for f in findings):
        Console().print(table(f"{given.draft}: not published, it has faults", findings))
        return 1
    _require_release(given.draft, subject)
    files = files_of(given.draft)
    _require_clean(files)
    _plan(given, files, findings)
    if given.yes:
        _upload(given, files, token)
    else:
        log("nothing was uploaded. To do it: the same command with --yes")
    return 0
