"""A store of replies whose states come from a live engine, for trainings with `capture.mode` online or hybrid.

Called by `python -m harness.training`. The engine runs in a process of its own (`producer`), so that training and
verifier share neither memory nor libraries' state, and hands its packs over through a folder:

- online: a few packs lie there at a time; each is deleted once it is read. A resumed training asks again for the packs
  of its remaining steps and gets the same states, bit for bit on a CPU: see `packs`.
- hybrid: the packs of the first epoch stay, beside the replies, and are the store of all epochs that follow and of
  every other draft that is trained on these replies in the same packs.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from harness.capture.packs import POLL_S, Rows, pack_key
from harness.capture.settings import CaptureSettings
from harness.capture.store import Document, FaultyDocument, Store, fault_of, read_facts, read_shard, shard_name
from harness.errors import UserError
from harness.files import write_json
from harness.gpus import MASK, visible_ids
from harness.progress import log
from harness.serving.processes import STOP_GRACE_S, log_tail, stop_group
from harness.verifiers.identity import verifier_identity

PACKS_AHEAD = 4
STATES = "states"  # of hybrid, within the folder of the replies
SPOOL = "spool"  # of online, within the folder of the training's state
LOG = "engine.log"


def open_store(
    folder: Path, verifier: Path, live: CaptureSettings | None, state: Path, leads: bool = True,
    meet: Callable[[], object] | None = None,
) -> Store:  # fmt: skip
    """The store that a training reads.

    Args:
        folder: of the capture.
        verifier: its folder.
        live: settings of the capture where states come from a live engine, else None.
        state: folder of the training's state.
        leads: whether this process, of those that train together, checks hashes, starts the engine and deletes packs.
        meet: returns once all of them have called it; None where there are no others.

    Raises:
        UserError: the capture was made in another mode, or by another verifier.
    """
    store, wanted = Store(folder, check_hashes=leads), live.capture.mode if live else "offline"
    if (kept := store.manifest.get("mode", "offline")) != wanted:
        raise UserError(f"{folder}: was captured with mode {kept}, the training asks for {wanted}. Fix: capture again")
    if live is None:
        return store
    if verifier_identity(verifier)["sha256"] != store.manifest["verifier"]["sha256"]:
        raise UserError(f"{verifier}: another verifier wrote the replies in {folder}. Fix: capture again")
    return LiveStore(folder, verifier, live, state, leads, meet)


def engine_devices(visible: Sequence[str], workers: int) -> dict[str, str]:
    """The variable that gives an engine its GPUs: the last ones, as a training takes the first.

    Raises:
        UserError: there are GPUs, but none is left for the training.
    """
    if not visible:
        return {}
    if len(visible) <= workers:
        raise UserError(
            f"capture.mode: the engine takes {workers} GPUs beside the training's, but this job may use "
            f"{', '.join(visible)}. Fix: give it {workers + 1}, or use mode offline"
        )
    return {MASK: ",".join(visible[-workers:])}


class LiveStore(Store):
    """Replies from the disk, states from an engine. `store[i]` is a reply alone, `documents` gives the states as well.

    Processes that train together read one folder of packs, each its documents of every pack. They are in step: when the
    first one asks for a pack, none reads the last but one any more.

    Raises:
        UserError: the engine failed; the message holds the end of its log.
    """

    def __init__(
        self, folder: Path, verifier: Path, settings: CaptureSettings, state: Path, leads: bool = True,
        meet: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(folder, check_hashes=leads)
        self._leads, self._meet = leads, meet
        self._verifier, self._settings, self._state = verifier, settings, state
        self._keeps = settings.capture.mode == "hybrid"
        self._packs_folder = folder / STATES if self._keeps else state / SPOOL
        self._process: subprocess.Popen | None = None
        self._order: Sequence[Rows] = ()
        self._next = 0
        self._homes: dict[int, tuple[int, int]] = {}
        self._opened: dict[int, dict[str, Tensor]] = {}
        self._seen: set[int] = set()

    @contextmanager
    def feeding(self, order: Sequence[Rows], first: int) -> Iterator[None]:
        """See `Store.feeding`; the block starts when the first pack is there."""
        self._order, self._next = order, first
        packs = self._packs_kept(order) if self._keeps else list(enumerate(order))[first:]
        missing = self._clear(packs) if self._leads else []
        if missing:
            self._start(missing)
        try:
            if self._meet:
                self._meet()  # nobody looks for packs before what lay there is gone
            if missing:
                self._await(missing[0][0])
            yield
        finally:
            if self._process:
                stop_group(self._process, STOP_GRACE_S)
                self._process = None
                self._clear(packs)

    def _packs_kept(self, order: Sequence[Rows]) -> list[tuple[int, Rows]]:
        """The packs that hold a row for the first time."""
        packs, self._homes = [], {}
        for number, rows in enumerate(order):
            if new := [row for row in rows if row not in self._homes]:
                packs.append((number, rows))
                self._homes |= {row: (number, rows.index(row)) for row in new}
        return packs

    def _path(self, number: int) -> Path:
        return self._packs_folder / shard_name(number)

    def _is_made(self, number: int, rows: Rows) -> bool:
        return read_facts(self._path(number)).get("key") == pack_key(self, rows, self._settings)

    def _clear(self, packs: Sequence[tuple[int, Rows]]) -> list[tuple[int, Rows]]:
        """Delete what is not kept or was made for something else; returns the packs that are left to make."""
        wanted = {self._path(number): (number, rows) for number, rows in packs if self._keeps}
        for path in self._packs_folder.glob("shard_*"):
            if path not in wanted or not self._is_made(*wanted[path]):
                path.unlink(missing_ok=True)
        return [(number, rows) for number, rows in packs if not self._path(number).exists()]

    def _start(self, packs: Sequence[tuple[int, Rows]]) -> None:
        self._packs_folder.mkdir(parents=True, exist_ok=True)
        listed = self._state / "packs.json"
        write_json(listed, packs)
        command = [
            sys.executable, "-m", "harness.capture.producer", "--settings", self._settings.model_dump_json(),
            "--verifier", str(self._verifier), "--replies", str(self.folder), "--packs", str(listed),
            "--out", str(self._packs_folder), "--parent", str(os.getpid()),
        ]  # fmt: skip
        ahead = [] if self._keeps else ["--ahead", str(PACKS_AHEAD)]
        devices = engine_devices(list(visible_ids()), self._settings.tensor_parallel_size)
        log(f"an engine of {self._verifier} gives the states of {len(packs)} packs; its log: {self._state / LOG}")
        with (self._state / LOG).open("wb") as out:
            self._process = subprocess.Popen(
                [*command, *ahead], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True, env=os.environ | devices,
            )  # fmt: skip

    def _await(self, number: int) -> Path:
        """The file of a pack, once it is whole."""
        path = self._path(number)
        while not path.exists():
            # The others are ended with the first process, which knows of the engine.
            code = self._process.poll() if self._process else 0 if self._leads else None
            if code is not None and not path.exists():
                raise UserError(
                    f"{self._verifier}: its engine ended with code {code} before pack {number} was made. "
                    f"Fix: see {self._state / LOG}; it ends with:\n{log_tail(self._state / LOG)}"
                )
            time.sleep(POLL_S)
        return path

    def forget(self) -> None:
        """See `Store.forget`."""
        super().forget()
        self._opened.clear()

    def documents(self, rows: Rows) -> list[Document]:
        """Documents with their states, in the order of `rows`."""
        if self._keeps:
            return [self._document(row, *self._homes[row]) for row in rows]
        number = self._go_on_to(rows)
        return [self._document(row, number, self._order[number].index(row)) for row in rows]

    def _go_on_to(self, rows: Rows) -> int:
        """The next pack that holds all of `rows`, this one or a later one; those before it have been read."""
        while not set(rows) <= set(self._order[self._next]):
            # A mapping outlives the name: memory is given back with the last of the pack's documents.
            self._opened.pop(self._next, None)
            if self._leads:
                self._path(self._next - bool(self._meet)).unlink(missing_ok=True)
            self._next += 1
        return self._next

    def _document(self, row: int, number: int, place: int) -> Document:
        shard, reply = self._pack(number), self[row]
        start, stop = shard["offsets"][place : place + 2].tolist()
        document = replace(reply, states=self._states(shard, start, stop))
        if row not in self._seen:
            if fault := fault_of(document):
                raise FaultyDocument(f"{self._path(number)}: {reply.id}: {fault}")
            self._seen |= {row} if self._keeps else set()
        return document

    def _pack(self, number: int) -> dict[str, Tensor]:
        if number not in self._opened:
            path = self._await(number)
            if not self._is_made(number, self._order[number]):
                raise UserError(f"{path}: does not hold the states of its replies. Fix: delete it and run again")
            self._opened[number] = read_shard(path)
        return self._opened[number]
