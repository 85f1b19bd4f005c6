"""The reference trainer (speculators 0.9.0) beside our drafts: its model of our checkpoint, its loss, its checkpoints.

Used by every algorithm's `test_<algorithm>_upstream.py`. An oracle only: the product does not use it.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import algorithms
from algorithms.contract import Batch, LossOutput, VerifierWeights
from algorithms.dflash.training import Anchored, block_states
from harness.checkpoint.reading import open_checkpoint, read_checkpoint
from harness.verifiers.weights import load_weights
from tests import toy

TOKENS = 3  # drafted a step, unless a case says otherwise
MASK_TOKEN_ID = 300  # a padding row of the toy vocabulary
REPLY_AT, LENGTH, REST = 7, 24, 10  # of the pack for block drafts
ANCHORS_MAX = 40  # more than the pack has
CLASSES = {"eagle3": "Eagle3", "peagle": "PEagle", "dflash": "DFlash", "dflash2": "DFlash2", "dspark": "DSpark"}


@dataclass(frozen=True)
class Pair:
    """A random draft of ours and upstream's model of its checkpoint.

    Attributes:
        settings: arguments of `toy.random_draft`.
    """

    algorithm: str
    settings: dict[str, Any]
    ours: Any
    theirs: Any
    verifier: VerifierWeights

    def config(self, **more: Any) -> Any:
        """Typed settings: the draft's and `more`, without what only `toy.random_draft` takes."""
        said = {name: value for name, value in self.settings.items() if name not in ("draft_vocab_size", "aux_layers")}
        return algorithms.load(self.algorithm).Config(**{"speculative_tokens": TOKENS} | said | more)

    def our_loss(self, batch: Batch, **more: Any) -> LossOutput:
        """The loss of our draft under `config(**more)`."""
        return algorithms.load(self.algorithm).objective(self.config(**more), self.verifier, self.ours)(batch)


def make_pair(folder: Path, algorithm: str, settings: dict[str, Any], prepare: Any = lambda _: None) -> Pair:
    """Write a verifier and a draft and let upstream load them.

    Args:
        folder: the current one, as the draft names its verifier relative to it.
        prepare: changes our draft before it is written.
    """
    verifier = load_weights(toy.write_verifier(folder / "verifier"))
    draft = toy.random_draft(verifier, algorithm=algorithm, **settings)
    prepare(draft)
    written = toy.write_draft(folder / "draft", draft, "verifier", algorithm)
    return Pair(algorithm, settings, draft, load_model(written, algorithm), verifier)


def load_model(folder: Path, algorithm: str) -> Any:
    """Upstream's model of the checkpoint in `folder`, in float32."""
    module, name = importlib.import_module(f"speculators.models.{algorithm}"), CLASSES[algorithm]
    config = getattr(module, f"{name}SpeculatorConfig").from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = getattr(module, f"{name}DraftModel").from_pretrained(folder, config=config)
    # Without embed_tokens in the file it holds uninitialised memory, which its own test for NaN does not always see.
    own_embedding = "embed_tokens.weight" in open_checkpoint(folder)[1]
    if algorithm in ("eagle3", "peagle"):
        model._load_verifier_weights(overwrite_embed_tokens=not own_embedding)
    else:
        model.load_verifier_weights()
    return model.float().eval()


def losses(name: str) -> dict[str, Any]:
    """Upstream's functions for a loss, by name."""
    from speculators.losses.utils import resolve_loss_config

    return resolve_loss_config(name, "eager")


def random_batch(loss_mask_S: torch.Tensor, document_S: torch.Tensor, draw: int = 0) -> Batch:
    """Random tokens and states for a toy verifier."""
    generator, size = torch.Generator().manual_seed(2), len(loss_mask_S)
    tokens = torch.randint(0, 256, (size,), generator=generator)
    states, last = torch.randn(size, 3, 64, generator=generator), torch.randn(size, 64, generator=generator)
    return Batch(tokens, states, last, loss_mask_S, document_S, draw)


def inputs(batch: Batch, shift: int = 0) -> dict[str, torch.Tensor]:
    """A batch as upstream's models read it. A `shift` of 1 puts token t + 1 beside state t."""
    end = len(batch.token_ids_S) - shift
    return {
        "hidden_states": batch.aux_states_SAH[:end].flatten(1)[None],
        "input_ids": batch.token_ids_S[shift:][None],
        "document_ids": batch.document_S[:end][None],
        "loss_mask": batch.loss_mask_S[shift:][None],
        "verifier_last_hidden_states": batch.last_state_SH[shift:][None],
    }


def block_pack(score_last: bool = False) -> tuple[Batch, Batch]:
    """(ours, theirs), the same for both but for the mask.

    Upstream's blocks may stand in any document of the pack and are scored by the mask of each position alone, so the
    pack ends in a document without a reply, where no block stands. It scores a draft by the mask of the predicted
    token, we by that of the token before: without `score_last`, the reply's last position is left out of ours.
    """
    place = torch.arange(LENGTH + REST)
    reply, document = (place >= REPLY_AT) & (place < LENGTH), (place >= LENGTH).long()
    ours = reply & (score_last | (place < LENGTH - 1))
    return random_batch(ours, document), random_batch(reply, document)


def check_block_loss(pair: Pair, packs: tuple[Batch, Batch], **given: Any) -> None:
    """Both compute the same loss of `packs`, as of `block_pack`; `given` to upstream beside the batch."""
    ours, theirs = packs
    loss_config = losses(pair.settings.get("loss", "kl_div"))
    _, loss, _ = pair.theirs(**inputs(theirs), loss_config=loss_config, max_anchors=ANCHORS_MAX, **given)
    assert float(pair.our_loss(ours).loss) == pytest.approx(float(loss), rel=1e-4)


def check_blocks_and_loss(pair: Pair, **given: Any) -> None:
    """Both compute the same states of every block, and the same loss; see `check_block_loss`."""
    seen: dict[str, torch.Tensor] = {}
    pair.theirs.norm.register_forward_hook(lambda *called: seen.update(states=called[-1]))
    ours, theirs = block_pack()
    check_block_loss(pair, (ours, theirs), **given)
    rows = pair.settings["block_size"]
    states = block_states(pair.ours, ours, Anchored.of(theirs, TOKENS, ANCHORS_MAX).anchor_R, rows)
    theirs_RTH = seen["states"].reshape(-1, rows, 64)[: len(states)]
    assert float((states - theirs_RTH).norm() / states.norm()) < 1e-5


def position_weights(settings: dict[str, Any]) -> str:
    """Upstream's name for the weights of a block's positions."""
    return {"dpace": "dpace"}.get(settings.get("position_weights", ""), "fixed-exp-decay")


def check_read_back(pair: Pair, folder: Path) -> None:
    """A checkpoint that upstream writes has no fault, is read, and drafts as ours does."""
    kind = algorithms.load(pair.algorithm)
    pair.theirs.save_pretrained(folder)
    content, tensors = read_checkpoint(folder)
    again = kind.restore(content, tensors, pair.verifier)
    tokens, states = torch.arange(9), torch.randn(8, 3, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(*(kind.propose(draft, tokens, states, TOKENS) for draft in (pair.ours, again)))
