"""Make a checkpoint of another project's draft, or vLLM's own configuration where the format has no place for it.

Exit code 0: written, and the linter found nothing; 2: the source cannot be converted, or not without an answer.
"""

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from algorithms.foreign import Answers
from harness.checkpoint.convert.layouts import LAYOUTS
from harness.checkpoint.convert.run import Request, convert

HELP = "make a checkpoint of another project's draft"


def _layer_ids(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of `convert`."""
    parser.add_argument("source", metavar="SOURCE", help="folder or hub id of the draft")
    parser.add_argument("--verifier", required=True, metavar="ID|DIR", help="the model that it drafts for")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write or replace")
    parser.add_argument("--from", dest="layout", metavar="LAYOUT", help=f"its layout, where it is not recognised: "
                         f"{', '.join(LAYOUTS)}")  # fmt: skip
    parser.add_argument("--revision", metavar="COMMIT", help="of the draft on the hub")
    parser.add_argument("--verifier-name", metavar="NAME", help="what the checkpoint calls the verifier")
    parser.add_argument(
        "--aux-layers", type=_layer_ids, metavar="2,18,33",
        help="ids of the verifier states that it reads: 0 the embedding, i the state after i layers",
    )  # fmt: skip
    parser.add_argument("--speculative-tokens", type=int, metavar="K", help="tokens to draft in a step")
    parser.add_argument("--mask-token-id", type=int, metavar="ID", help="the trained mask token")
    parser.add_argument("--d2t", choices=("offsets", "targets"), help="what its d2t holds, where both could be")
    parser.add_argument("--ignore-key", action="append", default=[], metavar="KEY", help="a config key without effect")
    parser.add_argument("--accept", action="append", default=[], metavar="RULE", help="a lint rule to overrule")


def request_of(given: argparse.Namespace) -> Request:
    """The request that a command line makes."""
    answers = Answers(
        given.aux_layers, given.speculative_tokens, given.mask_token_id, given.d2t, frozenset(given.ignore_key)
    )
    return Request(
        given.source, given.verifier, given.out, answers, given.layout, given.verifier_name, given.revision,
        tuple(given.accept),
    )  # fmt: skip


def run(given: argparse.Namespace) -> int:
    """Convert, and say what became of the draft."""
    done, console = convert(request_of(given)), Console(soft_wrap=True)
    report = done.report
    moved = [went for went in report["tensors"].values() if "to" in went]
    console.print(f"{given.out}: {done.layout.project} as {done.layout.becomes}: {len(moved)} tensors carried over")
    left = {name: went["left_out"] for name, went in report["tensors"].items() if "left_out" in went}
    for name, reason in (*left.items(), *report["made"].items()):
        console.print(escape(f"  {name}: {reason}"))
    for note in (*report["notes"], *(f"{f['rule']}: {f['found']}" for f in report["kept_faults"])):
        console.print(escape(f"  note: {note}"))
    console.print(escape(f"serve it: {done.command}"))
    return 0
