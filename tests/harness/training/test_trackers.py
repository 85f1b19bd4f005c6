"""Figures to TensorBoard and trackio: by choice, without either package in the way of those who do not ask."""

import json
import sys
from types import ModuleType

import pytest

from harness.errors import UserError
from harness.training import trackers

ROW = {"step": 4, "epoch": 0, "loss": 2.5}
VALIDATION = {"split": "validation", "step": 4, "drafts": 9, "acceptance_rate_per_position": [0.5, 0.25]}


@pytest.fixture
def tensorboard(monkeypatch):
    """Stands in for PyTorch's writer: keeps the calls."""
    calls = []

    class SummaryWriter:
        def __init__(self, folder, purge_step):
            calls.append(("open", folder, purge_step))

        def add_scalar(self, name, value, step):
            calls.append((name, value, step))

        def add_text(self, name, text):
            calls.append((name, text))

        def close(self):
            calls.append(("close",))

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return calls


def test_rows_become_named_numbers():
    assert trackers.figures_of(ROW) == {"train/epoch": 0, "train/loss": 2.5}
    assert trackers.figures_of(VALIDATION) == {
        "validation/drafts": 9, "validation/acceptance_rate_per_position_1": 0.5,
        "validation/acceptance_rate_per_position_2": 0.25,
    }  # fmt: skip


def test_a_package_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None if name == "trackio" else object())
    with pytest.raises(UserError, match=r"training\.log_to = .*trackio is not installed\. Fix: "):
        trackers.require(["tensorboard", "trackio"])
    trackers.require(["tensorboard"])
    trackers.require([])


def test_a_training_that_goes_on_hides_what_a_killed_one_logged_after_its_last_state(tmp_path, tensorboard):
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard/events").write_text("of before")
    with trackers.opened(["tensorboard"], tmp_path, 5, {"seed": 1}) as sinks:
        sinks[0].log({"train/loss": 2.5}, 5)
    assert tensorboard == [("open", str(tmp_path / "tensorboard"), 5), ("train/loss", 2.5, 5), ("close",)]
    assert (tmp_path / "tensorboard/events").exists()
    with trackers.opened(["tensorboard"], tmp_path, 1, {"seed": 1}):
        assert not (tmp_path / "tensorboard/events").exists(), "a training that starts over starts its log over"
    assert ("settings", "    seed: 1") in tensorboard


def test_trackio_gets_its_figures_beside_the_training_and_no_network(tmp_path, monkeypatch):
    for name in ("TRACKIO_DIR", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "trackio.py").write_text(
        "import json, os\n"
        "class Run:\n"
        "    told = []\n"
        "    def log(self, figures, step): self.told.append([figures, step])\n"
        "    def finish(self): self.told.append('end')\n"
        "def init(project, **how):\n"
        "    Run.told.append([project, how, os.environ['TRACKIO_DIR'], os.environ['HF_HUB_OFFLINE']])\n"
        "    return Run()\n"
    )
    folder = tmp_path / "toy/training/eagle3"
    for first_step, resume in ((1, "never"), (5, "allow")):
        with trackers.opened(["trackio"], folder, first_step, {"seed": 1}) as sinks:
            sinks[0].log({"train/loss": 2.5}, first_step)
        told = sys.modules["trackio"].Run.told
        how = {"name": "toy-training-eagle3", "config": {"seed": 1}, "resume": resume}
        assert json.loads(json.dumps(told[-3:])) == [
            ["specproof", how, str(folder / "trackio"), "1"], [{"train/loss": 2.5}, first_step], "end",
        ]  # fmt: skip
    sys.modules.pop("trackio")
