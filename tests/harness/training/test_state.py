"""Exact resume: kills at any moment, states of other trainings, best and last weights."""

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import algorithms
from harness.files import read_jsonl
from harness.sections.training import Training
from harness.training import loop, state
from harness.training.distributed import World
from harness.training.validation import Walk
from tests import toy
from tests.harness.training.toy_training import SETTINGS, TRAINING, make_store, run, without_clock

MUON = SETTINGS | {"training": TRAINING | {"optimizer": "muon", "weight_decay": 0.01, "schedule": "linear"}}


def changed(**training) -> dict:
    return SETTINGS | {"training": TRAINING | training}


def read(path: Path) -> list[dict]:
    return without_clock(read_jsonl(path) if path.suffix == ".jsonl" else [json.loads(path.read_text())])


def assert_the_same(one: Path, other: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        assert (one / "draft" / name).read_bytes() == (other / "draft" / name).read_bytes()
    for name in ("metrics.jsonl", "summary.json"):
        assert read(one / "state" / name) == read(other / "state" / name)
    first, second = (load_file(folder / "state/state.safetensors") for folder in (one, other))
    assert first.keys() == second.keys() and any(name.startswith("optimizer.") for name in first)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not list(other.rglob("*.partial")), "a killed writer left something behind"


def killed_then_finished(train, name: str, kills: list[dict], settings: dict | None = None, **how) -> None:
    """One killed run for each of `kills`, one after another over the same folder, then one to the end."""
    for kill in kills:
        train(name, settings, **how, **kill)
    done = train(name, settings, **how)
    assert done["status"] == 0, done["said"]


def test_a_training_killed_between_changes_of_its_files_ends_bit_equal_to_an_undisturbed_one(place, train):
    assert run(place, "straight").returncode == 0  # a process of its own, with another seed of hashes
    changes = train("counted")["changes"]
    draw = random.Random(1)
    killed_then_finished(train, "killed", [{"kill_at": draw.randint(1, changes)} for _ in range(3)])
    assert_the_same(place / "straight", place / "killed")


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SETTINGS, MUON], ids=["adamw", "muon"])
def test_kills_at_random_moments_change_nothing(place, train, settings):
    name = settings["training"]["optimizer"]
    straight = train(f"{name}_straight", settings)
    draw = random.Random(name)
    between = [{"kill_at": draw.randint(1, straight["changes"])} for _ in range(6)]
    anywhere = [{"kill_s": draw.uniform(0, straight["seconds"])} for _ in range(6)]
    kills = between + anywhere
    draw.shuffle(kills)
    killed_then_finished(train, f"{name}_killed", kills, settings)
    assert_the_same(place / f"{name}_straight", place / f"{name}_killed")


@pytest.mark.slow
def test_a_kill_before_each_change_of_a_file_at_the_end_of_a_training_loses_nothing(place, train):
    """The checkpoint and the summary are written there, one after another."""
    assert train("ended")["status"] == 0
    again = place / "again"
    shutil.copytree(place / "ended", again)

    def delete_declared() -> None:
        """As Snakemake does before it runs a step again."""
        for name in ("draft/model.safetensors", "draft/config.json", "state/summary.json"):
            (again / name).unlink()

    delete_declared()
    changes = train("again")["changes"]
    for kill_at in range(changes - 8, changes + 1):
        delete_declared()
        assert train("again", kill_at=kill_at)["status"] is None
        assert train("again")["status"] == 0
        assert_the_same(place / "ended", again)


MASKED = {"mask_token_id": 300, "draft_vocab_size": 96}
OF_ALL = {
    "eagle3": {"draft_vocab_size": 64},
    "peagle": MASKED,
    "dflash": MASKED | {"block_size": 4},
    "dspark": MASKED | {"block_size": 3},
    "dflash2": {"mask_token_id": 300, "block_size": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", algorithms.NAMES)
def test_every_algorithm_goes_on_bit_for_bit(place, train, algorithm):
    settings = SETTINGS | {"algorithm": OF_ALL.get(algorithm, OF_ALL["eagle3"]) | {"speculative_tokens": 3}}
    straight = train(f"{algorithm}_straight", settings, algorithm=algorithm)
    assert straight["status"] == 0, straight["said"]
    killed_then_finished(
        train, f"{algorithm}_killed", [{"kill_at": straight["changes"] // 2}], settings, algorithm=algorithm
    )
    assert_the_same(place / f"{algorithm}_straight", place / f"{algorithm}_killed")


@pytest.fixture(scope="module")
def finished(place, train):
    """A finished training in `finished/`."""
    assert train("finished")["status"] == 0
    return place / "finished"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (changed(learning_rate=1e-3), "training.learning_rate: 0.002 there, 0.001 here"),
        (changed(epochs=3), "training.epochs: 2 there, 3 here"),
        (
            SETTINGS | {"algorithm": {"speculative_tokens": 3, "draft_vocab_size": 32}},
            "algorithm.draft_vocab_size: 64 there, 32 here",
        ),
    ],
)
def test_a_state_of_another_recipe_is_refused_by_the_field_that_differs(finished, train, settings, said):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    done = train("finished", settings)
    last = done["said"].splitlines()[-1]
    assert done["status"] == 2 and "Traceback" not in done["said"]
    assert last.startswith(f"error: finished/state/state.safetensors: is of another training: {said}. Fix: ")
    assert "--restart-if-changed" in last
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


def test_a_state_of_other_data_or_of_another_verifier_is_refused_by_name(finished, place, train):
    capture, manifest = place / "capture", place / "capture/manifest.json"
    kept = place / "kept"
    shutil.copytree(capture, kept)
    try:
        make_store(capture, place / "verifier", lengths=(20, 31, 12, 25, 18, 40, 22, 9, 27, 17))
        said = train("finished")["said"]
        assert "capture.content: " in said and "capture.tokens: 220 there, 221 here" in said
        toy.write_verifier(place / "verifier", seed=5)
        made = make_store(capture, place / "verifier")
        assert "capture.content: " not in (said := train("finished")["said"]) and "verifier.sha256: " in said
        manifest.write_text(json.dumps(made.manifest | {"verifier": {"id": "toy", "sha256": "0" * 64}}))
        done = train("other")
        assert done["status"] == 2
        assert "capture: is of toy 000000000000, verifier holds verifier " in done["said"]
    finally:
        toy.write_verifier(place / "verifier")
        shutil.rmtree(capture)
        kept.rename(capture)
    assert train("finished")["status"] == 0, "all is as it was"


def test_a_step_of_the_workflow_starts_over_where_its_recipe_changed_and_says_what(place, train):
    assert train("over")["status"] == 0
    done = train("over", changed(learning_rate=1e-3), more=("--restart-if-changed",))
    assert done["status"] == 0
    assert "learning_rate: 0.002 there, 0.001 here; training starts from the beginning" in done["said"]
    summary = json.loads((place / "over/state/summary.json").read_text())
    assert summary["settings"]["training"]["learning_rate"] == 1e-3
    assert summary["provenance"]["commit"] is None or len(summary["provenance"]["commit"]) == 40
    again = train("over", changed(learning_rate=1e-3), more=("--restart-if-changed",))
    assert "resumed after step" in again["said"], "of the same recipe it goes on"


def test_what_changes_no_step_is_no_reason_to_refuse_and_another_machine_is_noted(finished, place, train):
    done = train("finished", changed(checkpoint_minutes=5.0, keep="best"), threads=2)
    assert (
        done["status"] == 0 and "on another machine, not bit for bit: machine.threads: 1 there, 2 here" in done["said"]
    )
    summary = json.loads((finished / "state/summary.json").read_text())
    steps = summary["steps"]
    assert summary["other_machines"] == [f"after step {steps}: machine.threads: 1 there, 2 here"]
    assert [each["step"] for each in summary["validations"]] == [steps // 2, steps]
    assert train("finished")["status"] == 0


def test_a_damaged_state_is_not_taken_up(place, train):
    assert train("damaged")["status"] == 0
    saved = place / "damaged/state/state.safetensors"
    saved.write_bytes(saved.read_bytes()[:1000])
    done = train("damaged")
    assert done["status"] == 0 and "not a whole training state" in done["said"]


def small_run(folder: Path, keep: str = "best", steps: int = 3) -> SimpleNamespace:
    """As much of a run as the choice of weights looks at: three epochs of a step each."""
    torch.manual_seed(0)
    draft = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    draft[0].requires_grad_(False)
    optimizers = [torch.optim.AdamW([p for p in draft.parameters() if p.requires_grad])]
    training = Training(**TRAINING | {"epochs": 3, "keep": keep})
    return SimpleNamespace(
        folder=folder, draft=draft, optimizers=optimizers, training=training, packs=[(n, []) for n in range(3)],
        steps=steps, seconds=0.0, best=None, other_machines=[], metrics=[], made_from={"machine": {}}, world=World(),
    )  # fmt: skip


def validated(run: SimpleNamespace, accepted: list[int]) -> Walk:
    """An epoch for each number: the weights become its number, then it validates with so many accepted of 10."""
    for epoch, count in enumerate(accepted, 1):
        run.steps, walk = epoch, Walk(10, [count])
        nn.init.constant_(run.draft[1].weight, epoch)
        loop._note_best(run, walk)
        loop._save(run)
    return walk


@pytest.mark.parametrize(
    ("keep", "accepted", "step"),
    [("best", [3, 5, 4], 2), ("best", [3, 5, 5], 3), ("best", [5, 3, 4], 1), ("last", [3, 5, 4], 3)],
)
def test_the_best_or_the_last_epoch_is_kept_and_survives_a_kill(tmp_path, keep, accepted, step):
    first = small_run(tmp_path, keep)
    validated(first, accepted)
    again = small_run(tmp_path, keep)
    saved = state.load(tmp_path, again.made_from, restart_if_changed=False)
    state.restore(saved, again.draft, again.optimizers)
    again.best = saved.at.best
    assert again.draft[1].weight.unique().tolist() == [3.0], "the state goes on from the last weights"
    for run_ in (first, again):
        assert loop.keep(run_, Walk(10, [accepted[-1]])) == (step, Walk(10, [accepted[step - 1]]))
        assert run_.draft[1].weight.unique().tolist() == [float(step)]
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["state.safetensors"], "best and last in one file"
    frozen = [name for name in load_file(tmp_path / "state.safetensors") if name.startswith("best.0.")]
    assert not frozen


def test_an_epoch_without_a_step_to_validate_counts_as_no_worse(tmp_path):
    run_ = small_run(tmp_path)
    for epoch in (1, 2):
        run_.steps = epoch
        loop._note_best(run_, Walk(0, [0]))
    assert run_.best.step == 2
