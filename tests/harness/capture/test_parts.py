"""A capture cut over jobs: each for itself, in any order, killed and resumed, and the store is that of one job."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.capture.parts import job_folder
from harness.capture.run import capture
from harness.capture.store import MANIFEST, Store
from harness.errors import UserError
from harness.sections.training import Capture
from tests.harness.capture.made import settings, write_prompts
from tests.harness.capture.reference import AUX_LAYERS, Reference, stopped_after

JOBS = 3
CUT = Capture(aux_layers=AUX_LAYERS, shard_rows=2, max_num_seqs=4, jobs=JOBS)
WHOLE = CUT.model_copy(update={"jobs": 1})
TIMED = {"seconds", "tokens_per_s", "provenance", "shards"}


@pytest.fixture
def place(tmp_path: Path, verifier: Path) -> Any:
    """Captures the eight prompts into `capture/`, or a folder by another name."""
    prompts = write_prompts(tmp_path / "train.jsonl")

    def run(cut: Capture, number: int | None = None, name: str = "capture") -> dict[str, Any]:
        return capture(settings(capture=cut), verifier, prompts, tmp_path / name, number)

    run.folder = tmp_path / "capture"
    return run


def test_jobs_in_any_order_give_the_store_of_one_job(place: Any, engine: Reference) -> None:
    for number in (2, 0, 1):
        place(CUT, number)
    assert sorted(engine.answered) == [f"row-{i}" for i in range(8)], "each row by one job"
    engine.answered.clear()
    joined = place(CUT)
    assert engine.answered == [], "joining asks nobody"
    single = place(WHOLE, name="single")
    assert {k: v for k, v in joined.items() if k not in TIMED} == {k: v for k, v in single.items() if k not in TIMED}
    ours, theirs = Store(place.folder), Store(place.folder.with_name("single"))
    assert len(ours) == len(theirs) == 8
    for i in range(8):
        assert ours[i].id == theirs[i].id == f"row-{i}" and torch.equal(ours[i].states, theirs[i].states)
        assert torch.equal(ours[i].token_ids, theirs[i].token_ids) and ours[i].last_token == theirs[i].last_token
    assert {record["file"].split("/")[0] for record in joined["shards"]} == {f"job_{i}" for i in range(JOBS)}


def test_a_killed_job_goes_on_by_itself_and_disturbs_no_other(
    place: Any, engine: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    place(CUT, 1)
    others = {path: path.stat().st_mtime_ns for path in (place.folder / job_folder(1)).iterdir()}
    with monkeypatch.context() as killed:
        killed.setattr(engine, "write", stopped_after(3, engine.write))
        with pytest.raises(KeyboardInterrupt):
            place(CUT, 0)
    place(CUT, 2)
    with pytest.raises(UserError, match=r"job_0/job.json: missing, so job 0 of 3 is not finished. Fix: .*--job 0"):
        place(CUT)
    engine.answered.clear()
    place(CUT, 0)
    assert engine.answered == ["row-6", "row-7"], "its first shard was finished"
    assert {path: path.stat().st_mtime_ns for path in (place.folder / job_folder(1)).iterdir()} == others
    assert place(CUT)["rows"] == 8


def test_a_job_that_captured_something_else_is_named(place: Any, engine: Reference) -> None:
    for number in range(JOBS):
        place(CUT, number)
    place(CUT.model_copy(update={"aux_layers": [1, 2, 3]}), 1)
    with pytest.raises(UserError, match=r"job_1/job.json: was made from other settings.capture.aux_layers. Fix: "):
        place(CUT)


def test_another_cut_leaves_nothing_of_the_one_before(place: Any, engine: Reference) -> None:
    for number in range(JOBS):
        place(CUT, number)
    place(CUT)
    place(WHOLE)
    assert not list(place.folder.glob("job_*")) and len(Store(place.folder)) == 8
    shutil.copytree(place.folder, place.folder.with_name("kept"))
    for number in range(JOBS):
        place(CUT, number)
    place(CUT)
    assert not list(place.folder.glob("shard_*")) and len(Store(place.folder)) == 8


def test_a_job_that_there_is_not_is_refused(place: Any, engine: Reference) -> None:
    with pytest.raises(UserError, match=r"--job = 3: capture.jobs = 3. Fix: use 0 to 2"):
        place(CUT, 3)


def test_more_jobs_than_shards_leave_some_with_nothing_to_do(place: Any, engine: Reference) -> None:
    cut = CUT.model_copy(update={"jobs": 6})
    for number in range(6):
        place(cut, number)
    assert place(cut)["rows"] == 8


def test_the_proofs_of_all_jobs_are_pooled_by_their_positions(place: Any, engine: Reference) -> None:
    for number in range(JOBS):
        place(CUT, number)
    for number, (positions, error) in enumerate([(10, 0.1), (30, 0.2), (60, 0.4)]):
        path = place.folder / job_folder(number) / "job.json"
        proof = {
            "rows": 2, "positions": positions, "relative_error_mean": {"1": error}, "divergence_mean_nats": error,
            "argmax_differs": number,
        }  # fmt: skip
        path.write_text(json.dumps(json.loads(path.read_text()) | {"preflight": proof}))
    pooled = place(CUT)["preflight"]
    assert (pooled["rows"], pooled["positions"], pooled["argmax_differs"]) == (6, 100, 3)
    assert pooled["divergence_mean_nats"] == pytest.approx(0.31) and pooled["relative_error_mean"] == {"1": 0.31}


def test_a_store_in_8_bits_says_its_error_by_layer(place: Any, engine: Reference) -> None:
    small = WHOLE.model_copy(update={"store_dtype": "int8"})
    manifest = place(small)
    assert manifest["store_dtype"] == "int8" and len(manifest["store_error"]) == 4
    assert all(0 < error < 0.02 for error in manifest["store_error"])
    engine.answered.clear()
    assert place(WHOLE)["store_error"] is None and len(engine.answered) == 8, "another form is captured anew"
    assert json.loads((place.folder / MANIFEST).read_text())["store_dtype"] == "float32"
