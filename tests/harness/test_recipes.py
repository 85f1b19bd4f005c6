"""What lies over what in a recipe: shared settings below, the scale's section on top."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.config import load_all, load_reproduction
from harness.errors import UserError
from harness.recipes import merge
from harness.yamlfile import read_yaml

GOOD = read_yaml(Path(__file__).parents[1] / "toy_reproduction.yaml")
MINI = {
    "verifier": {"source": "folder", "id": "mine/small", "path": "models/small"},
    "verifier_checks": [{"prompt": "2 + 2?", "answer": "4"}],
    "needs": {"cores": 2, "memory_gb": 6, "disk_gb": 1},
    "algorithms": {"dflash": {"speculative_tokens": 7, "mask_token_id": 3}},
    "data": {"train": [{"source": "word_problems", "rows": 10}]},
}


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(content))


def _with_mini(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(GOOD) | {"mini": MINI | changes}


def test_merging_goes_section_by_section_replaces_lists_and_takes_out_what_is_null():
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 1, "c": {"z": 1}}
    assert merge(base, {"a": {"y": [3]}, "b": None, "d": 2}) == {"a": {"x": 1, "y": [3]}, "c": {"z": 1}, "d": 2}
    assert merge(base, {"b": {"q": 1, "r": None}}) == {"a": {"x": 1, "y": [1, 2]}, "b": {"q": 1}, "c": {"z": 1}}
    assert base == {"a": {"x": 1, "y": [1, 2]}, "b": 1, "c": {"z": 1}}


_trees = st.recursive(st.integers() | st.lists(st.integers()), lambda inner: st.dictionaries(st.text("abc"), inner))


@given(st.dictionaries(st.text("abc"), _trees), st.dictionaries(st.text("abc"), _trees))
def test_laying_a_section_over_twice_is_laying_it_over_once(base: dict[str, Any], changes: dict[str, Any]):
    once = merge(base, changes)
    assert merge(once, changes) == once
    assert merge(changes, {}) == changes


def test_a_miniature_is_another_model_with_its_own_drafts_gates_and_needs(tmp_path: Path):
    _write(tmp_path / "mine" / "reproduction.yaml", _with_mini())
    full, mini = load_reproduction("mine", "full", tmp_path), load_reproduction("mine", "mini", tmp_path)
    assert (mini.target, mini.model, mini.scale) == ("mine_mini", "mine_mini", "mini")
    assert mini.verifier.source == "folder" and full.verifier.source == "wheel"
    assert mini.variants == ["none", "ngram", "dflash"]
    assert mini.gates.acceptance_length_min == {}
    assert mini.needs.memory_gb == 6.0
    assert [each.rows for each in mini.data.train] == [10]
    assert mini.data.heldout == full.data.heldout
    assert list(load_all(tmp_path)) == ["mine", "mine_smoke", "mine_mini"]


def test_a_recipe_needs_neither_smoke_nor_mini(tmp_path: Path):
    _write(tmp_path / "mine" / "reproduction.yaml", {key: GOOD[key] for key in GOOD if key != "smoke"})
    assert list(load_all(tmp_path)) == ["mine"]
    with pytest.raises(UserError, match=r"mini: missing\. Fix: add a mini section"):
        load_reproduction("mine", "mini", tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"verifier": None}, "with its mini section: verifier: missing. Fix: give a section"),
        ({"algorithm": {}}, "with its mini section: algorithm: no such key. Fix: algorithms"),
        ({"gates": {"speedup_c1_min": {"eagle3": 1.0}}}, "mini section: gates.speedup_c1_min: no variant called"),
    ],
)
def test_a_fault_of_a_miniature_is_named_with_its_section(tmp_path: Path, changes: dict[str, Any], said: str):
    _write(tmp_path / "mine" / "reproduction.yaml", _with_mini(**changes))
    with pytest.raises(UserError) as caught:
        load_reproduction("mine", "mini", tmp_path)
    assert said in str(caught.value)


def test_a_miniature_without_a_verifier_of_its_own_is_refused(tmp_path: Path):
    _write(tmp_path / "mine" / "reproduction.yaml", copy.deepcopy(GOOD) | {"mini": {"training": {"epochs": 1}}})
    with pytest.raises(UserError, match=r"mini.verifier: missing. Fix: name the small model"):
        load_all(tmp_path)


def test_what_recipes_share_lies_below_each(tmp_path: Path):
    own = ("verifier", "verifier_checks", "algorithms")
    _write(tmp_path / "shared.yaml", {key: GOOD[key] for key in GOOD if key not in own} | {"mini": MINI})
    recipe = {"like": "shared", "training": {"epochs": 9}, "smoke": {}, **{key: GOOD[key] for key in own}}
    _write(tmp_path / "mine" / "reproduction.yaml", recipe)
    loaded = load_all(tmp_path)
    assert list(loaded) == ["mine", "mine_smoke"], "it has no mini of its own"
    assert loaded["mine"].training.epochs == 9
    assert loaded["mine_smoke"].data.reply.max_new_tokens == GOOD["smoke"]["data"]["reply"]["max_new_tokens"]
    assert loaded["mine"].training.tokens_per_step == GOOD["training"]["tokens_per_step"]


def test_a_recipe_like_nothing_that_is_there_is_refused_with_what_there_is(tmp_path: Path):
    _write(tmp_path / "shared.yaml", {})
    _write(tmp_path / "mine" / "reproduction.yaml", {"like": "shred"})
    with pytest.raises(UserError, match=r"like = 'shred': is not there. Fix: .* use one of: shared"):
        load_reproduction("mine", "full", tmp_path)


def test_a_recipe_may_be_like_another_one(tmp_path: Path):
    own = ("verifier", "verifier_checks", "algorithms")
    _write(tmp_path / "shared.yaml", {key: GOOD[key] for key in GOOD if key not in own})
    _write(tmp_path / "first" / "reproduction.yaml", {"like": "shared", "smoke": {}} | {key: GOOD[key] for key in own})
    _write(tmp_path / "second" / "reproduction.yaml", {"like": "first", "training": {"epochs": 9}})
    loaded = load_all(tmp_path)
    assert list(loaded) == ["first", "first_smoke", "second"]
    assert loaded["second"].training == loaded["first"].training.model_copy(update={"epochs": 9})
    assert loaded["second"].verifier == loaded["first"].verifier


def test_recipes_that_are_like_each_other_are_refused(tmp_path: Path):
    for name, like in (("first", "second"), ("second", "first")):
        _write(tmp_path / name / "reproduction.yaml", {"like": like})
    with pytest.raises(UserError, match=r"second.*like = 'first': a recipe would be like itself. Fix: name another"):
        load_reproduction("first", "full", tmp_path)
