"""The preflight lets true states pass and names what is wrong with false ones; the estimate refuses in time."""

import shutil
from collections import defaultdict, namedtuple
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from algorithms.contract import VerifierWeights
from harness.capture.preflight import INDEX_BYTES_PER_TOKEN, _check_logits, check_states, estimate, refuse_if_short
from harness.capture.store import Document
from harness.errors import UserError
from harness.verifiers.asking import routes
from harness.verifiers.miniature import vision
from harness.verifiers.miniature.families import FAMILIES, model_config
from harness.verifiers.weights import load_weights
from tests.harness.capture.reference import LAYER_IDS, LAYERS, Reference

PROMPTS = [list(range(40, 60)), list(range(5, 12)), [257, 90, 91, 90, 91, 258]]


def documents(reference: Reference, layer_ids: list[int]) -> list[Document]:
    made = []
    for i, tokens in enumerate(PROMPTS):
        states, _ = reference.states(tokens, layer_ids)
        made.append(Document(str(i), torch.tensor(tokens), states, torch.ones(len(tokens), dtype=torch.bool), 7))
    return made


def check(verifier: Path, made: list[Document], weights: VerifierWeights | None = None) -> dict:
    return check_states(made, verifier, weights or load_weights(verifier), LAYER_IDS, "float32")


def test_true_states_pass_with_figures(verifier: Path, reference: Reference) -> None:
    figures = check(verifier, documents(reference, LAYER_IDS))
    assert figures["rows"] == 3
    assert figures["positions"] == sum(map(len, PROMPTS))
    assert figures["relative_error_mean"].keys() == {"1", "3", "4"}
    assert max(figures["relative_error_mean"].values()) < 1e-5
    assert abs(figures["divergence_mean_nats"]) < 1e-6
    assert figures["argmax_differs"] == 0


def test_a_wrong_weight_of_the_final_norm_is_named(verifier: Path, reference: Reference) -> None:
    weights = load_weights(verifier)
    planted = replace(weights, final_norm_H=weights.final_norm_H.roll(1))
    with pytest.raises(UserError, match="Suspect: the final norm's weight"):
        check(verifier, documents(reference, LAYER_IDS), planted)


def test_a_wrong_output_head_is_named(verifier: Path, reference: Reference) -> None:
    weights = load_weights(verifier)
    planted = replace(weights, head_VH=weights.embedding_VH)
    with pytest.raises(UserError, match="or the output head"):
        check(verifier, documents(reference, LAYER_IDS), planted)


def test_layer_ids_that_are_off_by_one_are_named(verifier: Path, reference: Reference) -> None:
    shifted = [i + 1 for i in LAYER_IDS[:-1]] + [LAYERS]
    with pytest.raises(UserError, match=r"stored as layer 1 are the verifier's layer 2.*layer ids are shifted"):
        check(verifier, documents(reference, shifted))


def test_last_states_of_the_layer_before_are_named(verifier: Path, reference: Reference) -> None:
    with pytest.raises(UserError, match=f"the last states are layer {LAYERS - 1}'s"):
        check(verifier, documents(reference, [*LAYER_IDS[:-1], LAYERS - 1]))


def changed(made: list[Document], change: Callable[[Tensor], Tensor]) -> list[Document]:
    return [replace(document, states=change(document.states.clone())) for document in made]


def test_last_states_behind_the_final_norm_are_named(verifier: Path, reference: Reference) -> None:
    norm = reference.model.model.norm

    def normed(states: Tensor) -> Tensor:
        states[:, -1] = norm(states[:, -1]).detach()
        return states

    with pytest.raises(UserError, match="already went through the final norm"):
        check(verifier, changed(documents(reference, LAYER_IDS), normed))


@pytest.mark.parametrize(("astray", "share_max", "refused"), [(1, 0.0, True), (2, 0.01, False), (3, 0.01, True)])
def test_a_few_tokens_of_a_mixture_of_experts_may_go_astray(astray: int, share_max: float, refused: bool) -> None:
    lost = torch.tensor([3.0] * astray + [0.4] * (200 - astray))
    with pytest.raises(UserError, match=f"beyond it {astray / 200:.1%}") if refused else nullcontext():
        _check_logits(1e-3, lost, torch.ones(5), "bfloat16", share_max)


def test_a_mixture_of_experts_is_known_by_its_configuration() -> None:
    families = FAMILIES | {vision.QWEN3_VL_MOE.model_type: vision.QWEN3_VL_MOE}
    found = {
        name: routes(SimpleNamespace(config=model_config(family, 64, defaultdict(int))))
        for name, family in families.items()
    }
    assert {name for name, mixed in found.items() if mixed} == {"qwen3_moe", "gpt_oss", "qwen3_vl_moe_text"}


def test_rows_of_another_position_are_named(verifier: Path, reference: Reference) -> None:
    with pytest.raises(UserError, match=r"layer 1 differ.*rows of another request"):
        check(verifier, changed(documents(reference, LAYER_IDS), lambda states: states.roll(1, dims=0)))


def test_the_estimate_is_tokens_times_layers_times_width_times_bytes() -> None:
    wanted = estimate([100] * 10, state_bytes=4 * 64 * 2, held_bytes=0)
    assert (wanted.rows, wanted.tokens) == (10, 1000)
    assert wanted.disk_bytes == 512_000 + 1000 * INDEX_BYTES_PER_TOKEN


def test_too_little_disk_is_refused_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = estimate([100] * 10, state_bytes=4 * 64 * 2, held_bytes=0)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(wanted.disk_bytes - 1))
    with pytest.raises(UserError, match=r"521,000 bytes of disk.*but 520,999 bytes of disk are free. Fix: "):
        refuse_if_short(wanted, tmp_path / "not" / "yet" / "there", on_cpu=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(wanted.disk_bytes))
    refuse_if_short(wanted, tmp_path, on_cpu=False)


def test_too_little_memory_is_refused_on_a_cpu_only(tmp_path: Path) -> None:
    wanted = estimate([1], state_bytes=1, held_bytes=1 << 50)
    with pytest.raises(UserError, match=r"lower capture.max_num_seqs"):
        refuse_if_short(wanted, tmp_path, on_cpu=True)
    refuse_if_short(wanted, tmp_path, on_cpu=False)
