"""Reads what the steps before left, or says in one line which file holds what none of them writes.

Called by the commands of `harness.evaluation`: their inputs may be cut, empty, or another program's.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, model_validator

from harness.config import validate
from harness.errors import UserError
from harness.files import read_jsonl
from harness.jsonfile import read_object
from harness.sections.evaluate import Latency as LatencySettings

Tokens = list[NonNegativeInt]
Candidate = Annotated[list[float], Field(min_length=2, max_length=2)]  # token id and log-probability
Level = Annotated[str, Field(pattern=r"^\d+$")]
Row = dict[str, Any]


class Left(BaseModel):
    """The part of a row or file that is read; what else stands there does not matter."""

    model_config = ConfigDict(strict=True)
    step: ClassVar[str] = "harness.evaluation measure"

    @classmethod
    def fix(cls) -> str:
        """What to do about a file that is none of these."""
        return f"Fix: give a whole file that `python -m {cls.step}` wrote"


class Prompt(Left):
    """A row of heldout.jsonl."""

    step: ClassVar[str] = "harness.data"
    id: str
    source: str
    messages: list[dict[str, Any]] = Field(min_length=1)


class Spec(Left):
    """A reply's record of its verify steps."""

    accepted_per_step: Tokens
    drafted_per_step: Tokens

    @model_validator(mode="after")
    def _same_steps(self) -> Self:
        if len(self.accepted_per_step) != len(self.drafted_per_step):
            raise ValueError("accepted_per_step and drafted_per_step differ in length")
        return self


class Reply(Left):
    """A reply whose steps are counted."""

    id: str
    token_ids: Tokens
    spec: Spec | None


class Asked(Reply):
    """A row of replies.jsonl."""

    source: str
    prompt_token_ids: Annotated[list[NonNegativeInt], Field(min_length=1)]


class Compared(Asked):
    """The same with what `match` looks at."""

    token_texts: list[str]
    top_logprobs: list[list[Candidate]]


class Sampled(Reply):
    """A row of samples.jsonl."""

    prompt_token_ids: Annotated[list[NonNegativeInt], Field(min_length=1)]
    likeliest: list[Candidate]


class Record(Left):
    """One timed request."""

    id: str
    output_tokens: int = Field(ge=1)
    latency_s: float
    ttft_ms: float


class Load(Left):
    """The requests of one concurrency."""

    records: list[Record]
    invalid: bool


class Latency(Left):
    """latency.json."""

    concurrency: dict[Level, Load]


class Acceptance(Left):
    """acceptance.json."""

    num_speculative_tokens: int = Field(ge=0)


class Swept(Acceptance):
    """The file of `sweep`."""

    step: ClassVar[str] = "harness.evaluation sweep"
    replies: list[Reply]
    latency: Latency


class Verification(Left):
    """The file of `verification`."""

    step: ClassVar[str] = "harness.evaluation verification"
    step_seconds: dict[Level, list[list[float]]]


class Validation(Left):
    """What training found on its validation."""

    acceptance_length_pooled: float | None = None


class Summary(Left):
    """summary.json of a training."""

    step: ClassVar[str] = "harness.training"
    validation: Validation


def _require(kind: type[Left], content: Any, where: str) -> None:
    if not isinstance(content, dict):
        raise UserError(f"{where}: holds a {type(content).__name__}, not an object. {kind.fix()}")
    try:
        validate(kind, content, where)
    except UserError as error:
        first = str(error).splitlines()[0].partition(". Fix: ")[0]
        raise UserError(f"{first}. {kind.fix()}") from None


def read_rows(path: Path, kind: type[Left]) -> list[Row]:
    """The rows of a JSONL file, each of which has what `kind` names.

    Raises:
        UserError: no such file, not JSONL, or a row lacks something: names row and field.
    """
    try:
        rows = read_jsonl(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: no such file. Fix: run `python -m {kind.step}` for it first") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged ({error}). {kind.fix()}") from None
    for number, row in enumerate(rows, 1):
        _require(kind, row, f"{path}: row {number}")
    return rows


def read_held_out(path: Path, latency: LatencySettings) -> tuple[list[Row], list[Row]]:
    """(rows of heldout.jsonl, those of them that the latency check sends).

    Raises:
        UserError: there are fewer than it sends.
    """
    rows = read_rows(path, Prompt)
    sent = [row for row in rows if row["source"] == latency.benchmark][: latency.requests]
    if len(sent) < latency.requests:
        raise UserError(
            f"{path}: holds {len(sent)} prompts of {latency.benchmark}, evaluate.latency.requests = {latency.requests} "
            "are sent. Fix: hold out more prompts, or send fewer requests"
        )
    return rows, sent


def read_file(path: Path, kind: type[Left]) -> dict[str, Any]:
    """The object of a JSON file, which has what `kind` names.

    Raises:
        UserError: no such file, not JSON, or it lacks something: names the field.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file. Fix: run `python -m {kind.step}` for it first")
    content = read_object(path, kind.fix())
    _require(kind, content, str(path))
    return content


def require_own_tokens(rows: Sequence[Row], verifier: Path) -> None:
    """Refuse rows that a larger vocabulary than the verifier's wrote.

    Raises:
        UserError: names the row, the token, and the verifier; or the folder holds no verifier.
    """
    from harness.verifiers.weights import verifier_config  # torch, which most commands do without

    size = verifier_config(verifier)["vocab_size"]
    for row in rows:
        highest = max([*row["prompt_token_ids"], *row["token_ids"]])
        if highest >= size:
            raise UserError(
                f"{verifier}: has {size} tokens, {row['id']} was replied to with token {highest}. "
                "Fix: give the verifier that was measured"
            )
