"""Laws of the sharded store: what goes in comes out, and nothing wrong or half-done is ever read."""

import json
import multiprocessing
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.capture.store import (
    MANIFEST,
    MANIFEST_KEYS,
    Document,
    FaultyDocument,
    Store,
    fault_of,
    read_facts,
    shard_name,
    shard_record,
    write_manifest,
    write_shard,
)
from harness.errors import UserError
from harness.memory import memory_bytes

LAYERS, WIDTH, VOCAB = 3, 8, 50
FACTS = {"state_shape": [LAYERS, WIDTH], "dtype": "bfloat16", "key": "k"}


def document(name: str, length: int, seed: int = 0) -> Document:
    draw = torch.Generator().manual_seed(seed)
    return Document(
        name,
        torch.randint(VOCAB, (length,), generator=draw),
        torch.randn(length, LAYERS, WIDTH, generator=draw).bfloat16(),
        torch.arange(length) >= length // 2,
        int(torch.randint(VOCAB, (1,), generator=draw)),
    )


def write_store(folder: Path, shards: list[list[Document]], **changes: object) -> Path:
    records = [shard_record(write_shard(folder, i, documents, FACTS)) for i, documents in enumerate(shards)]
    manifest = dict.fromkeys(MANIFEST_KEYS) | {
        "shards": records,
        "vocab_size": VOCAB,
        "aux_layers": [1, 2],
        "last_layer": 4,
    }
    write_manifest(folder, manifest | changes)
    return folder


def same(a: Document, b: Document) -> bool:
    tensors = (("token_ids", "states", "loss_mask"), (a, b))
    return (a.id, a.last_token) == (b.id, b.last_token) and all(
        torch.equal(getattr(a, name), getattr(b, name)) and getattr(a, name).dtype == getattr(b, name).dtype
        for name in tensors[0]
    )


@given(st.lists(st.lists(st.integers(1, 20), max_size=5), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_what_goes_in_comes_out_in_order(tmp_path_factory: pytest.TempPathFactory, lengths: list[list[int]]) -> None:
    shards = [
        [document(f"{s}-{r}", length, 100 * s + r) for r, length in enumerate(rows)] for s, rows in enumerate(lengths)
    ]
    store = Store(write_store(tmp_path_factory.mktemp("store"), shards))
    written = [d for documents in shards for d in documents]
    assert len(store) == len(written)
    assert all(same(store[i], d) for i, d in enumerate(written))
    assert store.lengths == [len(d.token_ids) for d in written]
    for token in range(VOCAB):
        holders = [d.id for d in written if token == d.last_token or (d.token_ids == token).any()]
        assert store.holds(token) == (holders[0] if holders else None)
    counts = torch.zeros(VOCAB, dtype=torch.int64)
    for d in written:
        for token in [*d.token_ids[d.loss_mask].tolist(), d.last_token]:
            counts[token] += 1
    assert torch.equal(store.token_counts(), counts)


def test_documents_are_views_of_the_mapped_shard(tmp_path: Path) -> None:
    store = Store(write_store(tmp_path, [[document("a", 5), document("b", 7)]]))
    first, second = store[0].states, store[1].states
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert store[1].states.data_ptr() == second.data_ptr()


def _mapped(folder: Path) -> dict[str, int]:
    """Kilobytes of this process's mappings of the store's files, by kind."""
    found, inside = Counter[str](), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            inside = str(folder) in line
        elif inside and rest[-1] == "kB":
            found[name.rstrip(":")] += int(rest[0])
    return found


def _read_all(folder: Path, together: Any, found: Any) -> None:
    store = Store(folder)
    sums = [float(store[i].states.float().sum()) for i in range(len(store))]
    together.wait(timeout=20)  # both have read everything
    found.put((sums, _mapped(folder)))
    together.wait(timeout=20)  # neither ends before the other has looked


def test_two_processes_read_one_store_at_once_from_the_same_pages(tmp_path: Path) -> None:
    documents = [document(str(i), 400, i) for i in range(20)]
    folder = write_store(tmp_path, [documents[:10], documents[10:]])
    context = multiprocessing.get_context("fork")
    together, found = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_read_all, args=(folder, together, found)) for _ in range(2)]
    for process in processes:
        process.start()
    results = [found.get(timeout=30) for _ in processes]
    for process in processes:
        process.join(timeout=30)
    stored = sum(path.stat().st_size for path in folder.glob("shard_*")) / 1024
    for sums, mapped in results:
        assert sums == [float(d.states.float().sum()) for d in documents]
        assert mapped["Private_Dirty"] == 0 and mapped["Shared_Clean"] > 0.9 * stored


def test_documents_come_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    store = Store(write_store(tmp_path, [[document("a", 5), document("b", 7)], [document("c", 3)]]))
    assert [d.id for d in store.documents([2, 0, 1])] == ["c", "a", "b"]
    with store.feeding([[2, 0, 1]], 0):
        assert [d.id for d in store.documents([1])] == ["b"], "stored states are read in any order"


def with_states(d: Document, states: torch.Tensor) -> Document:
    return Document(d.id, d.token_ids, states, d.loss_mask, d.last_token)


def spoil(kind: str) -> Document:
    good = document("bad", 6)
    states = good.states.clone()
    match kind:
        case "all-zero states":
            states[2, 1] = 0.0
        case "non-finite states":
            states[5, 0, 3] = float("nan")
        case "5 rows of states and 6 tokens":
            states = states[:5]
    return with_states(good, states)


FAULTS = ["all-zero states", "non-finite states", "5 rows of states and 6 tokens"]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_faulty_document_is_found_on_write_and_nothing_is_left(tmp_path: Path, kind: str) -> None:
    assert fault_of(document("good", 6)) is None
    with pytest.raises(FaultyDocument, match=f"bad: {kind}"):
        write_shard(tmp_path, 0, [document("good", 6), spoil(kind)], FACTS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", FAULTS[:2])
def test_a_faulty_document_is_found_on_read(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as unchecked:
        unchecked.setattr("harness.capture.store.fault_of", lambda _: None)
        write_store(tmp_path, [[document("good", 6), spoil(kind)]])
    store = Store(tmp_path)
    assert store[0].id == "good"
    with pytest.raises(FaultyDocument, match=rf"{shard_name(0)}: bad: {kind}"):
        store[1]


def test_infinite_states_are_not_finite() -> None:
    states = document("bad", 4).states.clone()
    states[0, 0, 0] = -float("inf")
    assert fault_of(with_states(document("bad", 4), states)) == "non-finite states"


def test_states_of_another_width_are_refused(tmp_path: Path) -> None:
    wide = with_states(document("wide", 4), torch.ones(4, LAYERS, WIDTH + 1, dtype=torch.bfloat16))
    with pytest.raises(FaultyDocument, match=r"\[3, 9\].*\[3, 8\]"):
        write_shard(tmp_path, 0, [wide], FACTS)


def test_a_store_without_a_manifest_is_refused_in_one_line(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, [document("a", 5)], FACTS)
    with pytest.raises(UserError, match=r"manifest.json: missing, so the capture is not finished. Fix: ") as caught:
        Store(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["one byte", "cut", "gone"])
def test_a_damaged_shard_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    shard = write_store(tmp_path, [[document("a", 5)]]) / shard_name(0)
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    match damage:
        case "one byte":
            shard.write_bytes(content)
        case "cut":
            shard.write_bytes(content[:-8])
        case "gone":
            shard.unlink()
    with pytest.raises(UserError, match=shard_name(0)):
        Store(tmp_path)


def test_a_manifest_that_lacks_a_key_is_neither_written_nor_read(tmp_path: Path) -> None:
    folder = write_store(tmp_path, [[document("a", 5)]])
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["last_layer"]
    with pytest.raises(ValueError, match="last_layer"):
        write_manifest(folder, manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="last_layer"):
        Store(folder)


def test_the_final_slice_is_split_off_only_if_it_is_the_last_layer(tmp_path: Path) -> None:
    store = Store(write_store(tmp_path / "with", [[document("a", 5)]]))
    aux, last = store.split_states(store[0])
    assert aux.shape == (5, LAYERS - 1, WIDTH)
    assert torch.equal(last, store[0].states[:, LAYERS - 1])
    without = Store(write_store(tmp_path / "without", [[document("a", 5)]], last_layer=None))
    with pytest.raises(ValueError, match="no last layer"):
        without.split_states(without[0])


def test_a_finished_shard_says_what_it_holds_and_a_broken_file_says_nothing(tmp_path: Path) -> None:
    path = write_shard(tmp_path, 3, [document("a", 5), document("b", 2)], FACTS | {"dropped": {"c": "too long"}})
    assert read_facts(path) == FACTS | {"dropped": {"c": "too long"}, "ids": ["a", "b"]}
    path.write_bytes(path.read_bytes()[:40])
    assert read_facts(path) == {}
    assert read_facts(tmp_path / "absent.safetensors") == {}


def test_what_was_read_counts_as_the_programs_memory_until_it_is_forgotten(tmp_path: Path) -> None:
    facts, tokens, states = FACTS | {"state_shape": [2, 8192]}, torch.arange(2000) % VOCAB, torch.ones(2000, 2, 8192)
    large = Document("large", tokens, states.bfloat16(), tokens >= 0, 1)
    record = shard_record(write_shard(tmp_path, 0, [large], facts))
    known = {"shards": [record], "vocab_size": VOCAB, "aux_layers": [1], "last_layer": 2}
    write_manifest(tmp_path, dict.fromkeys(MANIFEST_KEYS) | known)
    del large, states
    store, taken = Store(tmp_path), memory_bytes()
    assert store.lengths == [2000] and store.holds(VOCAB) is None
    assert memory_bytes() - taken < 10e6, "no states were read"
    assert store[0].states.sum() == 2000 * 2 * 8192
    assert memory_bytes() - taken > 60e6
    store.forget()
    assert memory_bytes() - taken < 10e6
    assert store[0].states.sum() == 2000 * 2 * 8192
