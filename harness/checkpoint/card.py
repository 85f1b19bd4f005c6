"""Write a draft's model card, README.md, and with --results its provenance.json: what `publish` uploads beside it.

The card's header is what the hub reads. A figure that a run does not have is "not run", with the reason.
"""

import argparse
from pathlib import Path

from harness.checkpoint.card_text import CardFacts, card_text
from harness.checkpoint.examine import examine
from harness.checkpoint.hub import HUB_ID, check_licence, licence_of
from harness.checkpoint.lint import lint
from harness.checkpoint.release import Record, record_of, write_record
from harness.checkpoint.results import Results, read_results
from harness.checkpoint.writing import CARD
from harness.errors import UserError
from harness.files import replacing
from harness.progress import log

HELP = "write the model card, with results and where they come from"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of `card`."""
    parser.add_argument("draft", type=Path, metavar="DIR", help="folder of the draft; the card is written into it")
    parser.add_argument("--results", type=Path, metavar="DIR", help="results/<target> of the run that measured it")
    parser.add_argument("--variant", help="its name in the results; the algorithm's if left out")
    parser.add_argument("--repo", metavar="ORG/NAME", help="where it will be published; the folder's name if left out")
    parser.add_argument("--license", metavar="ID", help="the verifier's licence, such as apache-2.0, or other")
    parser.add_argument("--verifier", type=Path, metavar="DIR", help="folder of the verifier, asked for its licence")


def _record(draft: Path, results: Results | None) -> Record:
    old = record_of(draft)
    if results is None:
        return old
    kept = ("settings", "provenance", "steps", "tokens", "training_rows", "trainable_parameters")
    training = {key: results.training[key] for key in kept if key in results.training}
    made = {"training": training | {"prompts": results.sources, "capture": results.capture}}
    return old.model_copy(update=made | {"results": results.provenance})


def run(given: argparse.Namespace) -> int:
    """Write one card."""
    if given.repo and not HUB_ID.fullmatch(given.repo):
        raise UserError(f"--repo = {given.repo}: not of the form ORG/NAME. Fix: give owner and name")
    if given.license is not None:
        check_licence(given.license)
    subject = examine(str(given.draft))
    faults = [f for f in lint(subject) if f.verdict == "fault"]
    if faults:
        raise UserError(f"{given.draft}: {faults[0].rule}: {faults[0].found}. Fix: {faults[0].fix}")
    results = None
    if given.results:
        variant = given.variant or subject.config["speculators_model_type"]
        results = read_results(given.results, variant, given.draft)
    record = _record(given.draft, results)
    facts = CardFacts(
        name=record.name or (given.repo or given.draft.resolve().name).rpartition("/")[2],
        serve_as=given.repo or given.draft.resolve().name,
        subject=subject,
        record=record,
        results=results,
        licence=None,
    )
    known = given.license or licence_of(facts.base_model, given.verifier)
    text = card_text(CardFacts(**{**facts.__dict__, "licence": known}))
    write_record(given.draft, record)
    with replacing(given.draft / CARD) as partial:
        partial.write_text(text, encoding="utf-8")
    log(f"{given.draft / CARD}: written{'' if results else '; without --results it says not run'}")
    return 0
