"""States from an engine beside the training: what the trainer reads, what stays on disk, what a resumed one asks for.

The reference stands in for the engine and writes the packs from a thread.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.capture import producer as producer_command
from harness.capture.live import PACKS_AHEAD, LiveStore, engine_devices, open_store
from harness.capture.packs import produce
from harness.capture.run import capture
from harness.capture.store import Store
from harness.errors import UserError
from harness.sections.training import Capture
from tests.harness.capture.made import settings, write_prompts
from tests.harness.capture.reference import AUX_LAYERS, LAYER_IDS, Reference

OFFLINE = Capture(aux_layers=AUX_LAYERS, shard_rows=3, max_num_seqs=4)
ORDER = [[2, 0, 1], [4], [3, 6], [7], [5], [1, 2], [0, 3, 4], [6], [7], [5]]  # two epochs, each then validated by 5


class Producer:
    """What `subprocess.Popen` is to the store, as a thread; `made` lists the packs it made, `most` what lay there."""

    def __init__(self, reference: Reference) -> None:
        self.reference, self.made, self.most, self.ended = reference, list[int](), 0, False
        self.pid = 0

    def start(self, store: LiveStore, packs: Any) -> None:
        folder, ahead = store._packs_folder, None if store._keeps else PACKS_AHEAD
        folder.mkdir(parents=True, exist_ok=True)
        engine = SimpleNamespace(write=lambda prompts, *_: self._write(prompts, folder))
        self.ended = False

        def noted() -> Iterator[tuple[int, Any]]:
            for number, rows in packs:
                self.made.append(number)
                yield number, rows

        arguments = (Store(store.folder), engine, store._settings, folder, noted(), ahead, lambda: not self.ended)
        self.thread = threading.Thread(target=produce, args=arguments, daemon=True)
        self.thread.start()

    def _write(self, prompts: Any, folder: Path) -> Iterator[Any]:
        self.most = max(self.most, len(list(folder.glob("shard_*"))) + 1)
        for prompt in prompts:
            states, _ = self.reference.states(prompt.token_ids, LAYER_IDS)
            yield SimpleNamespace(prompt=prompt, states=states)

    def poll(self) -> int | None:
        return None if self.thread.is_alive() else 0

    def stop(self, *_: Any) -> None:
        self.ended = True
        self.thread.join(timeout=10)


@pytest.fixture
def producer(verifier: Path, monkeypatch: pytest.MonkeyPatch) -> Producer:
    made = Producer(Reference(verifier))

    def start(store: LiveStore, packs: Any) -> None:
        made.start(store, packs)
        store._process = made

    monkeypatch.setattr(LiveStore, "_start", start)
    monkeypatch.setattr("harness.capture.live.stop_group", made.stop)
    return made


def replies(tmp_path: Path, verifier: Path, mode: str, **changes: Any) -> tuple[Path, Any]:
    given = settings(capture=OFFLINE.model_copy(update={"mode": mode} | changes))
    capture(given, verifier, write_prompts(tmp_path / "train.jsonl"), tmp_path / mode)
    return tmp_path / mode, given


def live_store(tmp_path: Path, verifier: Path, mode: str, **changes: Any) -> LiveStore:
    folder, given = replies(tmp_path, verifier, mode, **changes)
    return open_store(folder, verifier, given, tmp_path / "state")


def packs_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*shard_*"))


def test_a_store_of_replies_holds_no_states_and_all_tokens(tmp_path: Path, verifier: Path, engine: Reference) -> None:
    folder, _ = replies(tmp_path, verifier, "online")
    offline = tmp_path / "offline"
    engine.layer_ids = LAYER_IDS
    capture(settings(capture=OFFLINE), verifier, tmp_path / "train.jsonl", offline)
    ours, theirs = Store(folder), Store(offline)
    assert ours[0].states.numel() == 0 and ours.manifest["tokens"] == theirs.manifest["tokens"]
    assert torch.equal(ours.token_counts(), theirs.token_counts())
    assert ours.manifest["aux_layers"] == AUX_LAYERS and ours.manifest["last_layer"] == LAYER_IDS[-1]
    sizes = [sum(path.stat().st_size for path in each.glob("shard_*")) for each in (folder, offline)]
    assert sizes[0] < sizes[1] / 10


def test_online_gives_the_states_of_every_pack_and_keeps_none(
    tmp_path: Path, verifier: Path, engine: Reference, producer: Producer
) -> None:
    store = live_store(tmp_path, verifier, "online")
    with store.feeding(ORDER, 0):
        for rows in ORDER:
            for row, document in zip(rows, store.documents(rows), strict=True):
                states, _ = engine.states(document.token_ids.tolist(), LAYER_IDS)
                assert torch.equal(document.states, states) and document.id == f"row-{row}"
                aux, last = store.split_states(document)
                assert torch.equal(aux, states[:, :3]) and torch.equal(last, states[:, 3])
    assert producer.most <= PACKS_AHEAD < len(ORDER)
    assert packs_in(tmp_path / "state") == []


def test_the_rows_of_a_pack_may_be_asked_for_one_by_one(
    tmp_path: Path, verifier: Path, engine: Reference, producer: Producer
) -> None:
    store = live_store(tmp_path, verifier, "online")
    with store.feeding(ORDER, 0):
        got = [store.documents([row])[0].id for row in (2, 0, 4, 3, 6)]
        assert not (tmp_path / "state/spool/shard_00001.safetensors").exists(), "packs before the present one are gone"
    assert got == ["row-2", "row-0", "row-4", "row-3", "row-6"]


@pytest.mark.parametrize("mode", ["online", "hybrid"])
def test_processes_that_train_together_read_their_share_of_every_pack(
    mode: str, tmp_path: Path, verifier: Path, engine: Reference, producer: Producer
) -> None:
    folder, given = replies(tmp_path, verifier, mode)
    left_over = tmp_path / ("state/spool" if mode == "online" else "hybrid/states") / "shard_00000.safetensors"
    left_over.parent.mkdir(parents=True)
    left_over.write_bytes(b"of another training")
    together, got = threading.Barrier(2, timeout=30), ([], [])

    def read(rank: int) -> None:
        store = open_store(folder, verifier, given, tmp_path / "state", rank == 0, together.wait)
        with store.feeding(ORDER, 0):
            for rows in ORDER:
                mine = rows[rank::2] or rows[:1]
                got[rank].append([document.id for document in store.documents(mine)])
                together.wait()  # the step's gradients

    threads = [threading.Thread(target=read, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    for rank in range(2):
        assert got[rank] == [[f"row-{row}" for row in rows[rank::2] or rows[:1]] for rows in ORDER]
    assert producer.made == list(range(len(ORDER) if mode == "online" else 5)), "one engine for both"


def test_a_training_that_goes_on_asks_for_what_is_left_only(
    tmp_path: Path, verifier: Path, engine: Reference, producer: Producer
) -> None:
    store = live_store(tmp_path, verifier, "online")
    with store.feeding(ORDER, 0):
        first = [store.documents(rows) for rows in ORDER[:6]]
    producer.made.clear()
    left_over = tmp_path / "state" / "spool" / "shard_00002.safetensors"
    left_over.write_bytes(b"of a training that was killed")
    with store.feeding(ORDER, 5):
        again = store.documents(ORDER[5])
    assert producer.made[0] == 5 and not left_over.exists()
    assert all(torch.equal(a.states, b.states) for a, b in zip(first[5], again, strict=True))


def test_hybrid_asks_for_every_row_once_and_later_drafts_ask_nobody(
    tmp_path: Path, verifier: Path, engine: Reference, producer: Producer
) -> None:
    store = live_store(tmp_path, verifier, "hybrid")
    with store.feeding(ORDER, 0):
        seen = [store.documents(rows) for rows in ORDER]
    assert producer.made == [0, 1, 2, 3, 4], "the packs of the first epoch"
    assert len(packs_in(tmp_path / "hybrid" / "states")) == 5
    for rows, documents in zip(ORDER, seen, strict=True):
        for row, document in zip(rows, documents, strict=True):
            assert document.id == f"row-{row}"
            assert torch.equal(document.states, engine.states(document.token_ids.tolist(), LAYER_IDS)[0])
    producer.made.clear()
    another = open_store(store.folder, verifier, store._settings, tmp_path / "another draft")
    with another.feeding(ORDER, 3):
        assert torch.equal(another.documents([6])[0].states, seen[2][1].states)
    assert producer.made == []


def test_hybrid_makes_again_what_is_missing_or_belongs_to_other_packs(
    tmp_path: Path, verifier: Path, engine: Reference, producer: Producer
) -> None:
    store = live_store(tmp_path, verifier, "hybrid")
    with store.feeding(ORDER, 0):
        store.documents(ORDER[4])
        producer.thread.join(timeout=10)
    (tmp_path / "hybrid" / "states" / "shard_00001.safetensors").unlink()
    producer.made.clear()
    with store.feeding(ORDER, 6):
        store.documents([4])
    assert producer.made == [1]
    producer.made.clear()
    other = [[0, 1, 2], [4], [3, 6], [7, 5]]
    fresh = open_store(store.folder, verifier, store._settings, tmp_path / "state")
    with fresh.feeding(other, 0):
        assert [document.id for document in fresh.documents([5, 2])] == ["row-5", "row-2"]
        producer.thread.join(timeout=10)
    assert producer.made == [0, 3] and len(packs_in(tmp_path / "hybrid" / "states")) == 4


def test_hybrid_keeps_states_in_8_bits_where_it_is_told_to(
    tmp_path: Path, verifier: Path, engine: Reference, producer: Producer
) -> None:
    store = live_store(tmp_path, verifier, "hybrid", store_dtype="int8")
    with store.feeding(ORDER, 0):
        (document,) = store.documents([4])
    states, _ = engine.states(document.token_ids.tolist(), LAYER_IDS)
    error = (document.states - states).norm() / states.norm()
    assert 0 < error < 0.02 and document.states.dtype == states.dtype


def test_an_engine_that_fails_ends_the_training_with_the_end_of_its_log(
    tmp_path: Path, verifier: Path, engine: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = live_store(tmp_path, verifier, "online")
    monkeypatch.setattr("harness.capture.live.sys.executable", "/bin/false")
    started = time.monotonic()
    said = r"its engine ended with code 1 before pack 0 was made. Fix: see .*engine.log"
    with pytest.raises(UserError, match=said), store.feeding(ORDER, 0):
        raise AssertionError("the block must not start")
    assert time.monotonic() - started < 60, "not waited for in vain"


def test_a_capture_of_another_mode_or_verifier_is_refused(tmp_path: Path, verifier: Path, engine: Reference) -> None:
    folder, given = replies(tmp_path, verifier, "online")
    with pytest.raises(UserError, match=r"was captured with mode online, the training asks for offline. Fix: "):
        open_store(folder, verifier, None, tmp_path)
    hybrid = given.model_copy(update={"capture": given.capture.model_copy(update={"mode": "hybrid"})})
    with pytest.raises(UserError, match=r"mode online, the training asks for hybrid. Fix: "):
        open_store(folder, verifier, hybrid, tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    with pytest.raises(UserError, match="another verifier wrote the replies"):
        open_store(folder, other, given, tmp_path)


def test_the_engine_takes_the_last_gpus_and_leaves_one_to_the_training() -> None:
    assert engine_devices([], 1) == {}
    assert engine_devices(["4", "5", "7"], 2) == {"CUDA_VISIBLE_DEVICES": "5,7"}
    with pytest.raises(
        UserError, match=r"takes 2 GPUs beside the training's, but this job may use 4, 5. Fix: give it 3"
    ):
        engine_devices(["4", "5"], 2)


def test_the_engine_beside_a_training_runs_until_its_packs_are_made(
    tmp_path: Path, verifier: Path, engine: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, given = replies(tmp_path, verifier, "online")
    packs, running = tmp_path / "packs.json", []
    (tmp_path / "packs").mkdir()
    packs.write_text("[[0, [2, 0]], [1, [1]]]")

    @contextmanager
    def until_the_end(*_: Any) -> Iterator[Any]:
        running.append(True)
        yield SimpleNamespace(write=written)
        running.clear()

    def written(prompts: Any, *_: Any) -> Iterator[Any]:
        assert running, "the engine was stopped before its packs were made"
        for prompt in prompts:
            yield SimpleNamespace(prompt=prompt, states=engine.states(prompt.token_ids, LAYER_IDS)[0])

    for name in ("ensure_environment", "die_with_parent"):
        monkeypatch.setattr(f"harness.capture.producer.{name}", lambda: None)
    monkeypatch.setattr("harness.capture.engines.running_engine", until_the_end)
    options = {"settings": given.model_dump_json(), "verifier": verifier, "replies": folder, "packs": packs,
               "out": tmp_path / "packs", "parent": os.getppid()}  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr("sys.argv", ["producer", *words])
    producer_command.main()
    assert len(packs_in(tmp_path / "packs")) == 2 and not running
