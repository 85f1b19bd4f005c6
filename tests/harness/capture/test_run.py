"""The capture step around its engine: what is kept, dropped, counted, resumed. Transformers writes the replies."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.capture import run
from harness.capture.engine import Written
from harness.capture.run import capture
from harness.capture.store import MANIFEST, Store, shard_name
from harness.errors import UserError
from harness.files import write_jsonl
from harness.sections.data import Reply
from harness.sections.training import Capture
from tests.harness.capture.made import TEXTS, settings, write_prompts
from tests.harness.capture.reference import AUX_LAYERS, LAYER_IDS, LAYERS, Reference, stopped_after


def test_the_store_holds_every_reply_with_the_states_of_its_own_tokens(
    tmp_path: Path, verifier: Path, engine: Reference
) -> None:
    manifest = capture(settings(), verifier, write_prompts(tmp_path / "train.jsonl"), tmp_path / "capture")
    store = Store(tmp_path / "capture")
    assert [store[i].id for i in range(len(store))] == [f"row-{i}" for i in range(8)]
    assert [record["rows"] for record in manifest["shards"]] == [3, 3, 2]
    assert (manifest["aux_layers"], manifest["last_layer"]) == (AUX_LAYERS, LAYERS)
    for i in range(len(store)):
        document = store[i]
        states, logits = engine.states(document.token_ids.tolist(), LAYER_IDS)
        assert torch.equal(document.states, states)
        first = int(document.loss_mask.long().argmax())
        followed = [*document.token_ids[first:].tolist(), document.last_token]
        assert logits[first - 1 :].argmax(-1).tolist() == followed
        assert document.loss_mask.tolist() == [False] * first + [True] * (len(followed) - 1)
    assert manifest["supervised_tokens"] == int(store.token_counts().sum())
    assert manifest["tokens"] == sum(len(store[i].token_ids) for i in range(len(store)))


def test_replies_cut_at_the_limit_are_kept_and_counted(tmp_path: Path, verifier: Path, engine: Reference) -> None:
    manifest = capture(settings(), verifier, write_prompts(tmp_path / "train.jsonl"), tmp_path / "capture")
    store = Store(tmp_path / "capture")
    lengths = [int(store[i].loss_mask.sum()) + 1 for i in range(len(store))]
    assert manifest["rows"] == 8
    assert manifest["cut_at_limit"] == lengths.count(6) > 0


def test_a_run_that_is_stopped_goes_on_without_asking_again(
    tmp_path: Path, verifier: Path, engine: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, folder = write_prompts(tmp_path / "train.jsonl"), tmp_path / "capture"
    with monkeypatch.context() as first:
        first.setattr(engine, "write", stopped_after(5, engine.write))
        with pytest.raises(KeyboardInterrupt):
            capture(settings(), verifier, prompts, folder)
    assert [path.name for path in folder.glob("shard*")] == [shard_name(0)]
    with pytest.raises(UserError, match="the capture is not finished"):
        Store(folder)
    kept = (folder / shard_name(0)).stat()
    engine.answered.clear()
    resumed = capture(settings(), verifier, prompts, folder)
    assert engine.answered == [f"row-{i}" for i in range(3, 8)]
    again = (folder / shard_name(0)).stat()
    assert (again.st_ino, again.st_mtime_ns) == (kept.st_ino, kept.st_mtime_ns)
    whole = capture(settings(), verifier, prompts, tmp_path / "whole")
    for key in ("rows", "tokens", "supervised_tokens", "cut_at_limit", "dropped"):
        assert resumed[key] == whole[key]


@pytest.mark.parametrize(
    ("changes", "texts", "field"),
    [
        ({"reply": Reply(max_new_tokens=5)}, TEXTS, "settings.reply.max_new_tokens"),
        (
            {"capture": Capture(aux_layers=[1, 3, 5], shard_rows=3, max_num_seqs=4)},
            TEXTS,
            "settings.capture.aux_layers",
        ),
        ({"system_prompt": "be brief"}, TEXTS, "prompts, settings.system_prompt"),
        ({}, ["b", *TEXTS[1:]], "prompts"),
    ],
)
def test_shards_made_from_something_else_are_made_again_and_the_field_is_named(
    tmp_path: Path,
    verifier: Path,
    engine: Reference,
    capsys: pytest.CaptureFixture[str],
    changes: dict,
    texts: list,
    field: str,
) -> None:
    folder = tmp_path / "capture"
    capture(settings(), verifier, write_prompts(tmp_path / "train.jsonl"), folder)
    engine.answered.clear()
    capture(settings(**changes), verifier, write_prompts(tmp_path / "train.jsonl", texts), folder)
    assert len(engine.answered) == 8
    assert f"3 shards of an earlier capture are made again: other {field}\n" in capsys.readouterr().err


def test_a_smaller_batch_or_a_looser_limit_keeps_finished_shards(
    tmp_path: Path, verifier: Path, engine: Reference
) -> None:
    prompts, folder = write_prompts(tmp_path / "train.jsonl"), tmp_path / "capture"
    capture(settings(), verifier, prompts, folder)
    engine.answered.clear()
    smaller = Capture(aux_layers=AUX_LAYERS, shard_rows=3, max_num_seqs=2)
    capture(settings(capture=smaller, dropped_share_max=0.5), verifier, prompts, folder)
    assert engine.answered == []


def test_files_of_others_in_the_folder_stay(tmp_path: Path, verifier: Path, engine: Reference) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    capture(settings(), verifier, write_prompts(tmp_path / "train.jsonl"), folder)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_prompt_too_long_for_the_window_is_dropped_and_counted(
    tmp_path: Path, verifier: Path, engine: Reference
) -> None:
    prompts = write_prompts(tmp_path / "train.jsonl", ["a" * 50, "b", "c"])
    reason = "prompt too long for max_model_len 64"
    manifest = capture(settings(dropped_share_max=0.4), verifier, prompts, tmp_path / "capture")
    assert manifest["dropped"] == {reason: 1}
    assert manifest["dropped_ids"] == {"row-0": reason}
    assert manifest["rows"] == len(Store(tmp_path / "capture")) == 2


def test_a_reply_is_cut_where_the_window_ends(tmp_path: Path, verifier: Path, engine: Reference) -> None:
    job = run._job(settings(), verifier, write_prompts(tmp_path / "train.jsonl", ["a" * 40]), tmp_path / "c")
    prompt = job.prompts()[0]
    assert len(prompt.token_ids) + 6 > 64 >= len(prompt.token_ids)
    assert job.row_length(prompt) == 64


def test_too_many_dropped_rows_fail_before_the_engine_starts(tmp_path: Path, verifier: Path, engine: Reference) -> None:
    prompts = write_prompts(tmp_path / "train.jsonl", ["a" * 50, "b", "c"])
    with pytest.raises(
        UserError, match=r"1 of 3 rows are dropped \(1 x prompt too long.*dropped_share_max = 0.05. Fix: "
    ):
        capture(settings(), verifier, prompts, tmp_path / "capture")
    assert engine.answered == []


def test_a_set_of_which_nothing_is_left_is_an_error_whatever_the_limit(
    tmp_path: Path, verifier: Path, engine: Reference
) -> None:
    prompts = write_prompts(tmp_path / "train.jsonl", ["a" * 50])
    with pytest.raises(UserError, match="all 1 rows are dropped"):
        capture(settings(dropped_share_max=1.0), verifier, prompts, tmp_path / "capture")


def spoil(written: Written, kind: str) -> Written:
    states, tokens, reason = written.states.clone(), written.token_ids, written.finish_reason
    match kind:
        case "all-zero states":
            states[0, 0] = 0
        case "non-finite states":
            states[-1, -1, 0] = float("inf")
        case "reply of fewer than 3 tokens":
            states, tokens = states[: len(written.prompt.token_ids)], tokens[:1]
        case "engine: abort":
            reason = "abort"
    return Written(written.prompt, tokens, reason, states)


@pytest.mark.parametrize(
    "kind", ["all-zero states", "non-finite states", "reply of fewer than 3 tokens", "engine: abort"]
)
def test_a_faulty_reply_is_dropped_with_its_reason_and_too_many_fail_the_step(
    tmp_path: Path, verifier: Path, engine: Reference, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    write = engine.write
    monkeypatch.setattr(
        engine, "write", lambda *a: (spoil(w, kind) if w.prompt.id == "row-1" else w for w in write(*a))
    )
    prompts, given = write_prompts(tmp_path / "train.jsonl"), settings(min_supervised_tokens=3, dropped_share_max=0.2)
    manifest = capture(given, verifier, prompts, tmp_path / "capture")
    assert (manifest["dropped"], manifest["dropped_ids"]) == ({kind: 1}, {"row-1": kind})
    assert manifest["rows"] == 7
    with pytest.raises(UserError, match=f"1 of 8 rows are dropped .1 x {kind}"):
        capture(settings(min_supervised_tokens=3), verifier, prompts, tmp_path / "capture")
    assert not (tmp_path / "capture" / MANIFEST).exists()


def test_a_full_disk_stops_the_step_and_keeps_finished_shards(
    tmp_path: Path, verifier: Path, engine: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, folder = write_prompts(tmp_path / "train.jsonl"), tmp_path / "capture"
    fsync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    with monkeypatch.context() as small_disk:
        small_disk.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            capture(settings(), verifier, prompts, folder)
    assert [path.name for path in folder.iterdir()] == [shard_name(0)]
    engine.answered.clear()
    capture(settings(), verifier, prompts, folder)
    assert len(engine.answered) == 5
    assert len(Store(folder)) == 8


@pytest.mark.parametrize(
    ("texts", "said"),
    [([], "holds no prompts. Fix: "), (None, "no such file. Fix: "), ("twice", "'row-0' stands in it twice")],
)
def test_prompts_that_cannot_be_used_are_refused_in_one_line(
    tmp_path: Path, verifier: Path, engine: Reference, texts: Any, said: str
) -> None:
    path = tmp_path / "train.jsonl"
    if texts == "twice":
        row = {"id": "row-0", "messages": [{"role": "user", "content": "a"}]}
        write_jsonl(path, [row, row])
    elif texts is not None:
        write_prompts(path, texts)
    with pytest.raises(UserError, match=said) as caught:
        capture(settings(), verifier, path, tmp_path / "capture")
    assert "\n" not in str(caught.value)


def test_a_conversation_that_the_template_rejects_costs_that_row_only(
    tmp_path: Path, verifier: Path, engine: Reference
) -> None:
    rows = [{"id": str(i), "messages": [{"role": r, "content": "a"}]} for i, r in enumerate(["user", "critic", "user"])]
    write_jsonl(tmp_path / "train.jsonl", rows)
    manifest = capture(settings(dropped_share_max=0.5), verifier, tmp_path / "train.jsonl", tmp_path / "capture")
    assert manifest["dropped"] == {"unknown role 'critic'": 1}


def test_layers_out_of_range_are_refused_with_the_range(tmp_path: Path, verifier: Path, engine: Reference) -> None:
    given = settings(capture=Capture(aux_layers=[1, LAYERS], shard_rows=3, max_num_seqs=4))
    with pytest.raises(UserError, match=r"aux_layers = \[1, 6\].*has 6 layers. Fix: use ids from 0 to 5"):
        capture(given, verifier, write_prompts(tmp_path / "train.jsonl"), tmp_path / "capture")


def test_a_window_longer_than_the_verifier_reads_is_refused(tmp_path: Path, verifier: Path, engine: Reference) -> None:
    with pytest.raises(UserError, match=r"max_model_len = 513: .* reads 512 tokens"):
        capture(settings(max_model_len=513), verifier, write_prompts(tmp_path / "train.jsonl"), tmp_path / "capture")


def test_every_manifest_carries_provenance(tmp_path: Path, verifier: Path, engine: Reference) -> None:
    capture(settings(), verifier, write_prompts(tmp_path / "train.jsonl"), tmp_path / "capture")
    provenance = json.loads((tmp_path / "capture" / MANIFEST).read_text())["provenance"]
    assert provenance["scale"] == "smoke"
    assert len(provenance["settings_sha256"]) == 64
