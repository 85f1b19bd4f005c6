"""`python -m harness.training`: train one draft on a capture and write it as a checkpoint. Called by the rule `train`.

The state in --state outlives a kill; the checkpoint in --out appears whole at the end. On several GPUs `torchrun`
starts this command once for each (`harness.training.launch`); the first one writes.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import algorithms
from algorithms import speed
from algorithms.contract import Algorithm, VerifierWeights
from algorithms.settings import DraftConfig, MaskedConfig
from algorithms.vocabulary import choose
from harness.capture.live import open_store
from harness.capture.store import Store
from harness.checkpoint.writing import FILES, write_checkpoint
from harness.config import parse_settings, validate
from harness.errors import UserError, run_command
from harness.files import write_json
from harness.memory import peak_memory_bytes
from harness.progress import log
from harness.provenance import collect
from harness.sections.training import Training
from harness.training import trackers
from harness.training.distributed import World, gathered, joined, spread
from harness.training.fingerprint import fingerprint
from harness.training.loop import Run, keep, keep_freed_memory, resume, train
from harness.training.packing import reading_order
from harness.training.settings import TrainSettings
from harness.training.validation import Walk, walk_metrics
from harness.training.warmstart import Start
from harness.verifiers.identity import verifier_identity
from harness.verifiers.weights import load_weights


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.training", description="Train one draft on a capture.")
    parser.add_argument("--settings", required=True, help="JSON: training, algorithm (its settings), scale")
    parser.add_argument("--algorithm", required=True, choices=algorithms.NAMES)
    parser.add_argument("--verifier", required=True, type=Path, help="verifier folder, relative to the server's")
    parser.add_argument("--capture", required=True, type=Path, help="folder of the capture step")
    parser.add_argument("--out", required=True, type=Path, help="checkpoint folder")
    parser.add_argument("--state", required=True, type=Path, help="folder of the resumable state and the training log")
    parser.add_argument(
        "--restart-if-changed", action="store_true",
        help="start over where the state is of another recipe, data, verifier or code, instead of refusing it",
    )  # fmt: skip
    return parser.parse_args()


def _check_out(out: Path) -> None:
    """Refuse before training what would fail, or delete what this step did not write, after it."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out = {out}: is a file. Fix: give a folder")
    foreign = sorted({path.name for path in out.glob("*")} - FILES)
    if foreign:
        raise UserError(
            f"--out = {out}: holds {foreign[0]}, which is not of a draft. Fix: move it, or use another --out"
        )


def _fits(store: Store, verifier: VerifierWeights, folder: Path) -> None:
    for key in ("hidden_size", "vocab_size"):
        if store.manifest[key] != verifier.config[key]:
            told = f"{store.folder}: {key} = {store.manifest[key]}, that of {folder} is {verifier.config[key]}"
            raise UserError(f"{told}. Fix: train on a capture of this verifier")
    theirs, ours = store.manifest["verifier"], verifier_identity(folder)
    if theirs["sha256"] != ours["sha256"]:
        told = f"is of {theirs['id']} {theirs['sha256'][:12]}, {folder} holds {ours['id']} {ours['sha256'][:12]}"
        raise UserError(f"{store.folder}: {told}. Fix: train on a capture of this verifier")


def _special_tokens(config: dict) -> list[int]:
    """Ids that end a reply: without them every turn's end is rejected (contract 9, trap 22)."""
    eos = config.get("eos_token_id")
    return [token for token in (eos if isinstance(eos, list) else [eos]) if token is not None]


def _draft_vocabulary(store: Store, verifier: VerifierWeights, size: int | None) -> torch.Tensor:
    wanted = size or verifier.config["vocab_size"]
    try:
        return choose(store.token_counts(), wanted, _special_tokens(verifier.config))
    except ValueError as error:
        raise UserError(f"algorithms: {error}") from None


def _check_mask_token(store: Store, token: int) -> None:
    """A mask that stands in the text would tell the draft what is not known yet (contract 9, trap 17)."""
    vocabulary = store.manifest["vocab_size"]
    if token >= vocabulary:
        raise UserError(f"algorithms: mask_token_id = {token}: the vocabulary has {vocabulary}. Fix: use less")
    if document := store.holds(token):
        raise UserError(f"algorithms: mask_token_id = {token}: stands in {document}. Fix: use a token that no text has")


def _build(
    algorithm: Algorithm, store: Store, verifier: VerifierWeights, knobs: DraftConfig
) -> tuple[nn.Module, str | None]:
    """The draft that training starts from, and the hash of the checkpoint that it goes on from, if there is one."""
    start = Start(knobs.init_from, verifier.config["vocab_size"]) if knobs.init_from else None
    chosen = _draft_vocabulary(store, verifier, knobs.draft_vocab_size)
    kept_D = start.draft_to_target_D if start else chosen
    if len(kept_D) != len(chosen):
        told = f"draft_vocab_size = {knobs.draft_vocab_size}: init_from has {len(kept_D)}"
        raise UserError(f"algorithms: {told}. Fix: set {len(kept_D)}")
    try:
        draft = algorithm.build(knobs, verifier, kept_D, store.manifest["aux_layers"])
    except ValueError as error:
        raise UserError(f"algorithms.{algorithm.name}: {error}") from None
    if start:
        anew = start.give(algorithm, draft)
        log(f"going on from {knobs.init_from}; starting anew: {', '.join(anew) or 'nothing'}")
    counts = store.token_counts()
    covered = counts[kept_D].sum() / counts.sum()
    log(f"draft vocabulary: {len(kept_D)} of {len(counts)} tokens cover {covered:.2%} of the replies")
    return draft, start.sha256 if start else None


def _speed_up(draft: nn.Module, training: Training, world: World) -> None:
    if training.gradient_checkpointing:
        speed.recompute(draft)
    if training.compile and world.device.type == "cpu":
        raise UserError("training.compile = True: pays on a GPU only, and there is none. Fix: leave it out")
    if training.compile:
        speed.compile_parts(draft)


def _prepare(arguments: argparse.Namespace, settings: TrainSettings, knobs: DraftConfig, world: World) -> Run:
    algorithm: Algorithm = algorithms.load(arguments.algorithm)
    store = open_store(
        arguments.capture, arguments.verifier, settings.live, arguments.state, world.leads,
        (lambda: world.sum([0.0])) if world.size > 1 else None,
    )  # fmt: skip
    verifier = load_weights(arguments.verifier)
    _fits(store, verifier, arguments.verifier)
    if len(store) < 2:
        raise UserError(f"{arguments.capture}: {len(store)} replies are too few. Fix: capture more rows (data.train)")
    if isinstance(knobs, MaskedConfig):
        _check_mask_token(store, knobs.mask_token_id)
    torch.manual_seed(settings.training.seed)
    draft, start = _build(algorithm, store, verifier, knobs)
    made_from = fingerprint(settings, algorithm.name, knobs.model_dump(), store, arguments.verifier, start, world)
    draft.to(world.device)
    _speed_up(draft, settings.training, world)
    objective = spread(draft, algorithm.objective(knobs, verifier, draft), world)
    return Run(
        algorithm, draft, objective, store, settings.training, knobs.speculative_tokens, arguments.state, made_from,
        world,
    )  # fmt: skip


def _export(run: Run, out: Path, verifier: Path) -> None:
    with gathered(run.draft):
        content, tensors = run.algorithm.export(run.draft)
    if not run.world.leads:
        return
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
    floats = {name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in tensors.items()}
    config = load_weights(verifier).config
    kind, theirs = content["transformer_layer_config"]["model_type"], config.get("model_type")
    log(f"layers of the draft: {kind}, of the verifier: {theirs}; so it is meant, vLLM has {kind} for this draft")
    architectures = config.get("architectures", [])
    write_checkpoint(out, content, floats, verifier.as_posix(), architectures)


def _summary(run: Run, kept_step: int, walk: Walk, settings: TrainSettings, knobs: DraftConfig) -> dict:
    validated = [row for row in run.metrics if row.get("split") == "validation"]
    return {
        "steps": run.steps,
        "tokens": run.tokens,
        "seconds": round(run.seconds, 2),
        "tokens_per_s": round(run.tokens / run.seconds, 1),
        "peak_memory_bytes": peak_memory_bytes(),
        "processes": run.world.size,
        "device": run.world.device_text,
        "peak_device_memory_bytes": run.world.peak_device_memory_bytes,
        "training_rows": len(run.train_rows),
        "longest_row_tokens": max(run.lengths[row] for row in run.train_rows),
        "validation": walk_metrics(walk) | {"rows": len(run.validation_rows)},
        "kept_step": kept_step,
        "validations": [{key: row[key] for key in ("step", "acceptance_length_pooled")} for row in validated],
        "other_machines": run.other_machines,
        "draft_parameters": sum(p.numel() for p in run.draft.parameters()),
        "trainable_parameters": sum(p.numel() for p in run.draft.parameters() if p.requires_grad),
        "speculative_tokens": run.num_draft_tokens,
        "settings": {"training": settings.training.model_dump(), "algorithm": knobs.model_dump()},
        "provenance": collect(settings.model_dump(), settings.training.seed, settings.scale),
    }


def main() -> None:
    """Train, export, summarise."""
    arguments = _arguments()
    with joined() as world:
        _run(arguments, world)


def _run(arguments: argparse.Namespace, world: World) -> None:
    settings = parse_settings(arguments.settings, TrainSettings)
    kind = algorithms.config_class(arguments.algorithm)
    knobs = validate(kind, settings.algorithm, "--settings: algorithm")
    if arguments.verifier.is_absolute():
        raise UserError(f"--verifier = {arguments.verifier}: would stand in the checkpoint. Fix: give a relative path")
    _check_out(arguments.out)
    trackers.require(settings.training.log_to)
    keep_freed_memory()
    run = _prepare(arguments, settings, knobs, world)
    resume(run, arguments.restart_if_changed)
    with run.store.feeding(*reading_order(run.packs, run.validation_rows, run.steps)):
        step, walk = keep(run, train(run))
    _export(run, arguments.out, arguments.verifier)
    if world.leads:
        write_json(arguments.state / "summary.json", _summary(run, step, walk, settings, knobs))
    log(f"{arguments.out}: written; acceptance length on unseen training prompts {walk.acceptance_length_pooled:.3f}")


if __name__ == "__main__":
    run_command(main)
