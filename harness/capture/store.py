"""The sharded store of replies and hidden states: a few large safetensors files and one manifest.

`harness.capture` writes it (`write_shard`, `shard_record`, `write_manifest`); `harness.training` and
`harness.evaluation` read it (`Store`). A shard is self-describing (ids and counts stand in its header), so that a
killed capture finds its finished shards again; the manifest is written last and makes the store whole.

Shape letters: T = positions of one shard, S = positions of one document, A = auxiliary layers, H = verifier width,
V = verifier vocabulary. A reply of n tokens (prompt and answer) has S = n - 1 positions: its final token never was an
input, so it has no state and stands in `last_token`. States are kept as the verifier gave them or in 8 bits; a store of
replies alone, whose states a live engine gives (`live`), keeps 0 layers of them.

Any number of processes may read a store at once: shards are mapped, never copied, so all share one page cache.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from harness.capture import eight_bits
from harness.errors import UserError
from harness.files import file_sha256, replacing, write_json

MANIFEST = "manifest.json"
HEADER_KEY = "specproof"
MANIFEST_KEYS = {
    "aux_layers", "last_layer", "hidden_size", "vocab_size", "dtype", "verifier", "shards", "rows", "tokens",
    "supervised_tokens", "dropped", "cut_at_limit", "seconds", "tokens_per_s", "provenance",
}  # fmt: skip


class FaultyDocument(ValueError):
    """A document whose rows, tokens or states cannot be right; the message names it and the fault."""


@dataclass(frozen=True)
class Document:
    """One prompt and reply with its hidden states; from a `Store` the tensors are views of the mapped file, but for
    states that it keeps in 8 bits.

    Attributes:
        id: the prompt's id.
        token_ids: int64 [S].
        states: [S, A+1, H], layer ids ascending; the final slice is the residual stream before the final norm.
        loss_mask: bool [S], true on assistant tokens.
        last_token: the reply's final token, which has no state.
    """

    id: str
    token_ids: Tensor
    states: Tensor
    loss_mask: Tensor
    last_token: int


def fault_of(document: Document) -> str | None:
    """Why the document cannot be right, or None: rows against tokens, all-zero and non-finite states."""
    rows = len(document.states)
    for name, tensor in (("tokens", document.token_ids), ("mask entries", document.loss_mask)):
        if len(tensor) != rows:
            return f"{rows} rows of states and {len(tensor)} {name}"
    if rows == 0:
        return "no states"
    if document.states.shape[1] == 0:
        return None  # a reply alone
    peak_SL = document.states.abs().amax(dim=-1)  # NaN and infinity both reach the maximum
    if not peak_SL.isfinite().all():
        return "non-finite states"
    if not peak_SL.all():
        return "all-zero states"
    return None


def shard_name(index: int) -> str:
    """File name of shard `index`."""
    return f"shard_{index:05d}.safetensors"


def write_shard(folder: Path, index: int, documents: Sequence[Document], facts: dict[str, Any]) -> Path:
    """Write one shard to a temporary name, flush it to disk, then rename it.

    Args:
        folder: the store.
        index: number of the shard.
        documents: what it holds, in order; all of one width, dtype and number of layers; may be empty.
        facts: JSON-able data for the shard's header (`key` of the settings, dropped rows, ...); see `read_facts`. Of
            them `state_shape` and `dtype` are needed; with `store_dtype` "int8" the states are kept in 8 bits.

    Raises:
        FaultyDocument: a document's rows, tokens or states are wrong; nothing is written.
    """
    for document in documents:
        if fault := fault_of(document):
            raise FaultyDocument(f"{document.id}: {fault}")
    tensors = _tensors(documents, tuple(facts["state_shape"]), getattr(torch, facts["dtype"]))
    facts = facts | {"ids": [document.id for document in documents]}
    if facts.get("store_dtype") == "int8":
        packed, facts["store_error"] = eight_bits.pack(tensors["states"])
        tensors |= packed
    with replacing(folder / shard_name(index)) as partial:
        save_file(tensors, partial, metadata={HEADER_KEY: json.dumps(facts)})
    return folder / shard_name(index)


def _tensors(documents: Sequence[Document], state_shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Tensor]:
    lengths = torch.tensor([0, *(len(document.token_ids) for document in documents)], dtype=torch.int64)
    states = [document.states for document in documents]
    wrong = next((s for s in states if s.shape[1:] != state_shape or s.dtype != dtype), None)
    if wrong is not None:
        raise FaultyDocument(
            f"states are {list(wrong.shape[1:])} {wrong.dtype}, the store's {list(state_shape)} {dtype}"
        )
    return {
        "states": torch.cat([torch.empty(0, *state_shape, dtype=dtype), *states]),
        "token_ids": torch.cat([torch.empty(0, dtype=torch.int64), *(d.token_ids.long() for d in documents)]),
        "loss_mask": torch.cat([torch.empty(0, dtype=torch.bool), *(d.loss_mask for d in documents)]),
        "offsets": lengths.cumsum(0),
        "last_token": torch.tensor([d.last_token for d in documents], dtype=torch.int64),
    }


def read_facts(path: Path) -> dict[str, Any]:
    """The header data of a shard, `ids` included; empty for a file that this module did not write whole."""
    try:
        with safe_open(path, framework="pt") as shard:
            return json.loads((shard.metadata() or {}).get(HEADER_KEY, "{}"))
    except (OSError, SafetensorError):
        return {}


def read_shard(path: Path) -> dict[str, Tensor]:
    """The tensors of a shard, mapped and not read."""
    with safe_open(path, framework="pt") as shard:
        return {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118 - not a dict


def shard_record(path: Path) -> dict[str, Any]:
    """The manifest's entry for a finished shard."""
    with safe_open(path, framework="pt") as shard:
        ids = json.loads(shard.metadata()[HEADER_KEY])["ids"]
        tokens = shard.get_slice("token_ids").get_shape()[0]
    return {
        "file": path.name,
        "rows": len(ids),
        "tokens": tokens,
        "bytes": path.stat().st_size,
        "sha256": file_sha256(path),
        "ids": ids,
    }


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Make the store whole. Raises `ValueError` when a key of the format is missing."""
    if missing := MANIFEST_KEYS - manifest.keys():
        raise ValueError(f"manifest lacks {sorted(missing)}")
    write_json(folder / MANIFEST, manifest)


class Store:
    """A whole store, mapped into memory: `len(store)`, `store[i]`, `store.manifest`, `store.token_counts()`.

    Raises:
        UserError: no manifest (capture was not finished), or a shard that is missing or is not what the manifest says.
        FaultyDocument: on access to a document with wrong rows, or all-zero or non-finite states.
    """

    def __init__(self, folder: Path | str, check_hashes: bool = True) -> None:
        self.folder = Path(folder)
        self.manifest = self._read_manifest()
        self._shards = [self._open(record, check_hashes) for record in self.manifest["shards"]]
        self._places = [(s, row) for s, record in enumerate(self.manifest["shards"]) for row in range(record["rows"])]
        self._checked = [False] * len(self._places)
        self._touched: set[int] = set()

    def _read_manifest(self) -> dict[str, Any]:
        path = self.folder / MANIFEST
        try:
            manifest = json.loads(path.read_text())
        except FileNotFoundError:
            raise UserError(
                f"{path}: missing, so the capture is not finished. "
                "Fix: run the capture step again; finished shards are kept"
            ) from None
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: not JSON ({error}). Fix: delete the folder and capture again") from None
        if missing := MANIFEST_KEYS - manifest.keys():
            raise UserError(f"{path}: lacks {', '.join(sorted(missing))}. Fix: delete the folder and capture again")
        return manifest

    def _open(self, record: dict[str, Any], check_hash: bool) -> dict[str, Tensor]:
        path = self.folder / record["file"]
        manifest = self.folder / MANIFEST
        advice = f"Fix: delete it and {manifest}, then run the same command: only what is missing is made again"
        if not path.exists():
            raise UserError(f"{path}: missing, but the manifest names it. {advice}")
        if path.stat().st_size != record["bytes"] or (check_hash and file_sha256(path) != record["sha256"]):
            raise UserError(f"{path}: differs from its hash in the manifest. {advice}")
        tensors = read_shard(path)
        rows, tokens, offsets = len(tensors["states"]), len(tensors["token_ids"]), tensors["offsets"]
        if len(offsets) != record["rows"] + 1 or rows != tokens or int(offsets[-1]) != tokens:
            raise UserError(f"{path}: {rows} rows of states for {tokens} tokens. {advice}")
        return tensors

    def __len__(self) -> int:
        return len(self._places)

    @property
    def lengths(self) -> list[int]:
        """Positions of every document; no states are read."""
        return [length for shard in self._shards for length in shard["offsets"].diff().tolist()]

    def masks(self, rows: Sequence[int]) -> list[Tensor]:
        """Loss masks of documents; no states are read."""
        found = []
        for s, row in (self._places[index] for index in rows):
            start, stop = self._shards[s]["offsets"][row : row + 2].tolist()
            found.append(self._shards[s]["loss_mask"][start:stop])
        return found

    def holds(self, token: int) -> str | None:
        """Id of the first document that has the token, None where no one has; no states are read."""
        for record, shard in zip(self.manifest["shards"], self._shards, strict=True):
            places = (shard["token_ids"] == token).nonzero()[:1, 0]
            within = torch.searchsorted(shard["offsets"], places, right=True) - 1
            rows = torch.cat([within, (shard["last_token"] == token).nonzero()[:1, 0]])
            if len(rows):
                return record["ids"][int(rows.min())]
        return None

    def forget(self) -> None:
        """Map anew what was read: pages of a mapped file count as this program's memory as long as they are mapped."""
        for s in self._touched:
            self._shards[s] = read_shard(self.folder / self.manifest["shards"][s]["file"])
        self._touched.clear()

    def __getitem__(self, index: int) -> Document:
        """Document `index` as views of the mapped file; checked on its first access."""
        s, row = self._places[index]
        shard = self._shards[s]
        self._touched.add(s)
        start, stop = shard["offsets"][row : row + 2].tolist()
        document = Document(
            self.manifest["shards"][s]["ids"][row],
            shard["token_ids"][start:stop],
            self._states(shard, start, stop),
            shard["loss_mask"][start:stop],
            int(shard["last_token"][row]),
        )
        if not self._checked[index]:
            if fault := fault_of(document):
                raise FaultyDocument(f"{self.folder / self.manifest['shards'][s]['file']}: {document.id}: {fault}")
            self._checked[index] = True
        return document

    def _states(self, shard: dict[str, Tensor], start: int, stop: int) -> Tensor:
        states_SLH = shard["states"][start:stop]
        if "row_scale" not in shard:
            return states_SLH
        dtype = getattr(torch, self.manifest["dtype"])
        return eight_bits.unpack(states_SLH, shard["row_scale"][start:stop], shard["channel_scale"], dtype)

    def documents(self, rows: Sequence[int]) -> list[Document]:
        """Documents with their states, in the order of `rows`."""
        return [self[row] for row in rows]

    @contextmanager
    def feeding(self, order: Sequence[Sequence[int]], first: int) -> Iterator[None]:
        """Within the block `documents` is called for rows of `order[first]`, then of `order[first + 1]` and so on.

        Nothing to do for states that lie there; see `live.LiveStore`.
        """
        yield

    def split_states(self, document: Document) -> tuple[Tensor, Tensor]:
        """Auxiliary states [S, A, H] and last states [S, H].

        Raises:
            ValueError: the store does not record its final slice as the verifier's last layer, so nothing is split off.
        """
        if self.manifest["last_layer"] is None:
            raise ValueError(f"{self.folder}: holds layers {self.manifest['aux_layers']} and no last layer")
        return document.states[:, :-1], document.states[:, -1]

    def token_counts(self) -> Tensor:
        """How often each token was written by the verifier, final tokens included: int64 [V]."""
        counts = torch.zeros(self.manifest["vocab_size"], dtype=torch.int64)
        for shard in self._shards:
            for tokens in (shard["token_ids"][shard["loss_mask"]], shard["last_token"]):
                counts += torch.bincount(tokens, minlength=len(counts))
        return counts
