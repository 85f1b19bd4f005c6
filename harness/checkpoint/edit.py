"""Write a draft anew with another verifier, number of draft tokens or name; its weights stay as they are.

Refused where it would make a fault: a number of tokens that the draft cannot draft, or a verifier of other sizes. One
whose sizes are the same, such as a quantised copy of the trained one, is fine. The card is not taken along: make it
again, with what was measured.
"""

import argparse
import os
import re
import shutil
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from algorithms.settings import SPECULATIVE_TOKENS_MAX
from harness.checkpoint.diff import differing_keys
from harness.checkpoint.examine import examine, locate
from harness.checkpoint.findings import Finding, VerifierFacts
from harness.checkpoint.hub import HUB_ID, PART, fetch_config, is_hub_id
from harness.checkpoint.lint import accepting, lint
from harness.checkpoint.reading import weight_files
from harness.checkpoint.release import Edit, Record, record_of, write_record
from harness.checkpoint.tensor_rules import INDEX_FILE
from harness.checkpoint.verifier_facts import read_facts
from harness.errors import UserError
from harness.files import replacing_folder, write_json
from harness.progress import log

HELP = "change verifier, number of draft tokens or name, not the weights"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of `edit`."""
    parser.add_argument("draft", metavar="DRAFT", help="folder of the draft, or its hub id")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write; must be new")
    parser.add_argument("--verifier", metavar="ID", help="hub id of the verifier to name, or a relative folder")
    parser.add_argument(
        "--verifier-folder",
        type=Path,
        metavar="DIR",
        help="a copy of that verifier here, if the hub is not to be asked",
    )
    parser.add_argument("--speculative-tokens", type=int, metavar="K", help="tokens to draft in each step")
    parser.add_argument("--name", help="name of the draft, for its card")
    parser.add_argument(
        "--accept", action="append", default=[], metavar="RULE", help="take this rule's faults as intended; repeatable"
    )


def link_weights(source: Path, target: Path) -> None:
    """Put the weights of one folder into another: the same bytes on disk where the file system can, else copies."""
    index = [source / INDEX_FILE] if (source / INDEX_FILE).exists() else []
    for path in [*weight_files(source), *index]:
        try:
            os.link(path.resolve(), target / path.name)  # the hub's cache holds symbolic links
        except OSError:  # another file system
            shutil.copyfile(path, target / path.name)


def with_verifier(config: dict[str, Any], name: str, architectures: Sequence[str]) -> dict[str, Any]:
    """The config with another verifier named in it."""
    changed = deepcopy(config)
    changed["speculators_config"]["verifier"] = {"name_or_path": name, "architectures": list(architectures)}
    return changed


def _facts(given: argparse.Namespace) -> VerifierFacts | None:
    if given.verifier is None:
        return None
    if not HUB_ID.fullmatch(given.verifier) and (not given.verifier or not Path(given.verifier).is_dir()):
        raise UserError(
            f"--verifier = {given.verifier!r}: neither of the form ORG/NAME nor a folder. Fix: give one of them"
        )
    folder = given.verifier_folder or Path(given.verifier)
    if not folder.is_dir() and given.verifier_folder is None and is_hub_id(given.verifier):
        folder = fetch_config(given.verifier)
    if not folder.is_dir():
        raise UserError(
            f"{folder}: no such verifier. Fix: give its hub id, or pass --verifier-folder with a copy of it"
        )
    return read_facts(folder, weights_too=False)


def _changed(given: argparse.Namespace, config: dict[str, Any], facts: VerifierFacts | None) -> dict[str, Any]:
    changed = deepcopy(config)
    try:
        if facts is not None:
            changed = with_verifier(changed, given.verifier, facts.architectures)
        if given.speculative_tokens is not None:
            changed["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = given.speculative_tokens
    except (KeyError, IndexError, TypeError):
        raise UserError(f"{given.draft}: no speculators_config to edit. Fix: lint it, and mend its structure") from None
    return changed


def _refuse_new_faults(draft: str, before: list[Finding], after: list[Finding]) -> None:
    known = {(f.rule, f.found) for f in before}
    new = [f for f in after if f.verdict == "fault" and (f.rule, f.found) not in known]
    if new:
        told = "; ".join(f"{f.rule}: {f.found}" for f in new)
        raise UserError(f"{draft}: not edited: {told}. Fix: {new[0].fix}, or pass --accept {new[0].rule}")


def _record(folder: Path, name: str | None, changes: dict[str, tuple[Any, Any]]) -> Record:
    old = record_of(folder)
    new = [Edit(changed={key: list(pair) for key, pair in changes.items()})] if changes else []
    edits = [*old.edits, *new]
    return old.model_copy(update={"edits": edits, "name": name or old.name})


def run(given: argparse.Namespace) -> int:
    """Edit one draft."""
    if given.verifier is None and given.speculative_tokens is None and given.name is None:
        raise UserError("nothing to change. Fix: give --verifier, --speculative-tokens or --name")
    if given.name is not None and not re.fullmatch(PART, given.name):
        raise UserError(
            f"--name = {given.name!r}: not a name. Fix: use letters, digits and -_., one of the first two at the start"
        )
    if given.out.exists():
        raise UserError(f"--out = {given.out}: exists. Fix: give a new folder")
    folder, facts = locate(given.draft)[0], _facts(given)
    subject = examine(given.draft)
    config = _changed(given, subject.config, facts)
    edited = examine(given.draft, facts, config=config)
    _refuse_new_faults(given.draft, lint(subject), accepting(lint(edited), given.accept))
    if given.speculative_tokens is not None and given.speculative_tokens > SPECULATIVE_TOKENS_MAX:
        most = f"more than {SPECULATIVE_TOKENS_MAX}, which is the most that a recipe trains for"
        raise UserError(f"--speculative-tokens = {given.speculative_tokens}: {most}. Fix: give as many or fewer")
    changes = differing_keys(subject.config, config)
    record = _record(folder, given.name, changes)
    with replacing_folder(given.out) as partial:
        link_weights(folder, partial)
        write_json(partial / "config.json", config)
        write_record(partial, record)
    for key, (before, after) in changes.items():
        log(f"{key}: {before!r} -> {after!r}")
    log(f"{given.out}: written; weights as in {given.draft}")
    return 0
