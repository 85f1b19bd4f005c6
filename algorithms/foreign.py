"""Drafts of other projects: what a layout is, and the books that a translation keeps.

An algorithm's `foreign.py` lists the layouts that become its checkpoints, made of the moves in `foreign_parts`;
`algorithms.foreign_layouts` collects them and `harness.checkpoint.convert` runs them. Nothing of a source is dropped in
silence: `Fields` knows which config keys were read, `Ledger` where each tensor went.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from algorithms.contract import VerifierWeights
from algorithms.shapes import Shapes

# Keys of a config that say how a draft was trained, saved or sampled: none changes what it computes.
INERT_KEYS = frozenset(
    {
        "_attn_implementation", "_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id",
        "draft_num_hidden_layers", "dtype", "eos_token_id", "initializer_range", "max_window_layers", "model_type",
        "num_anchors", "output_attentions", "output_hidden_states", "pad_token_id", "return_dict", "step_loss_decay",
        "torch_dtype", "transformers_version", "ttt_length", "use_cache",
    }
)  # fmt: skip
# Around a draft saved from inside a trainer, and an early name of its heads.
PREFIXES = ("module.", "draft_model.", "model.", "logit_head.")


class ForeignError(ValueError):
    """A source that cannot be translated, or not without an answer: one line with the field and the fix."""


@dataclass(frozen=True)
class Answers:
    """What the user says where a source is silent.

    Attributes:
        aux_layers: ids of the verifier states that the draft reads, in the engine's count (contract 3).
        speculative_tokens: drafts of a step.
        mask_token_id: the token that stands for one that is not known yet.
        d2t: what the table of a reduced vocabulary holds: target ids, or those minus draft ids.
        ignored_keys: config keys that change nothing, whatever they are.
    """

    aux_layers: tuple[int, ...] | None = None
    speculative_tokens: int | None = None
    mask_token_id: int | None = None
    d2t: Literal["offsets", "targets"] | None = None
    ignored_keys: frozenset[str] = frozenset()


class Fields:
    """A source's config.json, or a section of it, with note of the keys that were read."""

    def __init__(self, content: dict[str, Any], prefix: str = "") -> None:
        self.content, self.prefix = content, prefix
        self._read: set[str] = set()
        self._parts: list[Fields] = []

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key; the default where it is absent or null."""
        self._read.add(key)
        value = self.content.get(key)
        return default if value is None else value

    def need(self, key: str) -> Any:
        """The value of a key that the project always writes."""
        value = self.get(key)
        if value is None:
            raise ForeignError(f"config.json: {self.prefix}{key}: missing. Fix: write the trained value there")
        return value

    def only(self, key: str, allowed: Any, why: str, fix: str = "convert another draft") -> None:
        """Refuse every value but one; an absent key has it."""
        value = self.get(key, allowed)
        if value != allowed:
            raise ForeignError(f"config.json: {self.prefix}{key} = {value!r}: {why}. Fix: {fix}")

    def part(self, key: str) -> "Fields":
        """A section; empty where it is absent."""
        found = Fields(self.get(key, {}), f"{self.prefix}{key}.")
        self._parts.append(found)
        return found

    def unread(self) -> list[str]:
        """Keys with a value that nobody read and that may change what the draft computes."""
        own = [
            f"{self.prefix}{key}"
            for key, value in self.content.items()
            if key not in self._read and key not in INERT_KEYS and value is not None
        ]
        return own + [key for part in self._parts for key in part.unread()]


def plain_name(name: str) -> str:
    """A tensor's name without what trainers put around it, and with the single layer in the list of layers."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name.replace("midlayer.", "layers.0.", 1) if name.startswith("midlayer.") else name


class Ledger:
    """The tensors of a source by plain name, and where each of them went.

    Attributes:
        tensors: the checkpoint under way.
        went: by the source's own name, the names it has now, or why it was left out.
        made: by name, how a tensor came about that the source does not hold.
    """

    def __init__(self, source: dict[str, Tensor]) -> None:
        self._waiting: dict[str, tuple[str, Tensor]] = {}
        self.tensors: dict[str, Tensor] = {}
        self.went: dict[str, dict[str, Any]] = {}
        self.made: dict[str, str] = {}
        for name, tensor in source.items():
            plain = plain_name(name)
            if plain in self._waiting:
                said = f"tensors {self._waiting[plain][0]} and {name} are both {plain}"
                raise ForeignError(f"{said}. Fix: keep the right one")
            self._waiting[plain] = (name, tensor)

    def __contains__(self, name: str) -> bool:
        return name in self._waiting

    def names(self) -> list[str]:
        """Plain names of the tensors that went nowhere yet."""
        return list(self._waiting)

    def look(self, name: str) -> Tensor | None:
        """A tensor that went nowhere yet, left where it is."""
        return self._waiting[name][1] if name in self._waiting else None

    def move(self, name: str, new: str | None = None, tensor: Tensor | None = None) -> None:
        """Put a tensor into the checkpoint, under another name or changed if given."""
        original, own = self._waiting.pop(name)
        self.tensors[new or name] = own if tensor is None else tensor
        self.went[original] = {"to": [new or name]}

    def split(self, name: str, new: Iterable[str], sizes: list[int]) -> None:
        """Put the rows of a fused tensor into the list of those waiting, under their own names."""
        original, fused = self._waiting.pop(name)
        if sum(sizes) != fused.shape[0]:
            said = f"tensor {original}: {fused.shape[0]} rows, the config says {sum(sizes)}"
            raise ForeignError(f"{said}. Fix: use config and tensors of one draft")
        for number, (part, tensor) in enumerate(zip(new, fused.split(sizes), strict=True)):
            if part in self:
                raise ForeignError(f"tensors {original} and {part}: the same weights twice. Fix: keep one of them")
            self._waiting[part] = (f"{original} [rows of part {number}]", tensor)

    def leave_out(self, name: str, reason: str) -> None:
        """Note why a tensor is not part of the checkpoint."""
        self.went[self._waiting.pop(name)[0]] = {"left_out": reason}

    def make(self, name: str, tensor: Tensor, how: str) -> None:
        """Add a tensor that the source does not hold."""
        self.tensors[name], self.made[name] = tensor, how

    def carry(self, required: Shapes, optional: Shapes) -> None:
        """Move every tensor that the checkpoint has under the same name, and see that nothing is left or lacking.

        Raises:
            ForeignError: an unknown tensor, a missing one, or one of another shape.
        """
        expected = required | optional
        for name in [name for name in self._waiting if name in expected]:
            self.move(name)
        if self._waiting:
            told = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in self._waiting.values())
            raise ForeignError(f"tensors {told}: not part of this layout. Fix: name the right one with --from")
        missing = [name for name in required if name not in self.tensors]
        if missing:
            raise ForeignError(f"tensors {', '.join(missing)}: missing. Fix: use every file of the source")
        for name, tensor in self.tensors.items():
            if tuple(tensor.shape) != expected[name]:
                said = f"tensor {name} is {list(tensor.shape)}, the config says {list(expected[name])}"
                raise ForeignError(f"{said}. Fix: use config and tensors of one draft, and its own verifier")


@dataclass
class Case:
    """One translation under way.

    Attributes:
        notes: what a user should know of it.
    """

    fields: Fields
    ledger: Ledger
    verifier: VerifierWeights
    answers: Answers
    notes: list[str] = field(default_factory=list)

    @property
    def verifier_layers(self) -> int:
        """Number of the verifier's layers."""
        return self.verifier.config["num_hidden_layers"]

    def answered(self, name: str, found: Any, key: str, fix: str) -> Any:
        """A value that the source says in `key`, or the user: never both with a difference, never neither."""
        given = getattr(self.answers, name)
        option = f"--{name.replace('_', '-')}"
        if found is None and given is None:
            raise ForeignError(f"config.json: {key}: missing. Fix: pass {option} {fix}")
        if None not in (found, given) and found != given:
            raise ForeignError(f"{option} {given}: config.json says {key} = {found}. Fix: leave {option} out")
        return given if found is None else found


@dataclass(frozen=True)
class ForeignLayout:
    """How another project saves a draft, and what it becomes.

    Attributes:
        name: what --from calls it.
        project: whose it is, in words.
        becomes: an algorithm, or the name of a method that vLLM knows by itself.
        recognised_by: in words, for the documentation.
        recognise: (config.json content, plain tensor names) -> whether it is this one.
        translate: case -> config.json content; the tensors are in the case's ledger. For an algorithm's checkpoint
            the verifier is added by the writer.
        native: whether the result is served by vLLM's own configuration, not by the speculators format.
    """

    name: str
    project: str
    becomes: str
    recognised_by: str
    recognise: Callable[[dict[str, Any], Collection[str]], bool]
    translate: Callable[[Case], dict[str, Any]]
    native: bool = False


def architecture(config: dict[str, Any]) -> str:
    """The class name that a config gives; empty where it gives none."""
    return (config.get("architectures") or [""])[0]


def layout_of_class(
    class_name: str, name: str, project: str, becomes: str, translate: Callable[[Case], dict[str, Any]]
) -> ForeignLayout:
    """A layout that the class name in its config tells from all others; the rest as in `ForeignLayout`."""
    return ForeignLayout(
        name, project, becomes, f"`{class_name}`", lambda config, _: architecture(config) == class_name, translate
    )
