"""What must be the same for a training to go on."""

from pathlib import Path

from harness.capture.store import Store
from harness.sections.training import Training
from harness.training.fingerprint import OUTSIDE, differences, fingerprint
from harness.training.settings import TrainSettings
from tests.harness.training.toy_training import TRAINING


def made(place: Path, knobs: dict | None = None, start: str | None = None, **training) -> dict:
    settings = TrainSettings(training=Training(**TRAINING | training), algorithm={}, scale="smoke")
    return fingerprint(settings, "eagle3", knobs or {}, Store(place / "capture"), place / "verifier", start)


def test_a_field_that_differs_is_named_with_both_values():
    ours = {"a": {"b": 1, "c": [1, 2]}, "d": "f" * 64}
    theirs = {"a": {"b": 2, "c": [1, 2]}, "e": True}
    assert list(differences(theirs, ours)) == [
        "a.b: 2 there, 1 here", f"d: nothing there, {'f' * 12} here", "e: True there, nothing here",
    ]  # fmt: skip
    assert not list(differences(ours, ours))


def test_every_setting_of_a_training_is_in_it_but_those_that_change_no_step(place):
    fields = set(made(place)["training"])
    assert fields == set(Training.model_fields) - OUTSIDE
    assert made(place) == made(place, checkpoint_minutes=7.0, keep="best", log_to=["tensorboard"])


def test_code_verifier_data_and_start_are_in_it(place):
    found = made(place, {"ttt_steps": 2})
    assert {"harness/training", "algorithms/eagle3", "algorithms"} <= found["code"].keys()
    assert found["verifier"] == Store(place / "capture").manifest["verifier"]
    assert (found["capture"]["rows"], found["algorithm"]) == (10, {"name": "eagle3", "ttt_steps": 2, "start": None})
    assert list(differences(found, made(place, {"ttt_steps": 2}, start="f" * 64))) == [
        f"algorithm.start: nothing there, {'f' * 12} here"
    ]
