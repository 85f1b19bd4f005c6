"""Every rule of the linter, each against a draft with that one defect; and sound drafts, which have none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import algorithms
from harness.checkpoint.findings import Subject
from harness.checkpoint.lint import accepting, algorithm_of, lint
from tests import toy
from tests.harness.checkpoint import drafts
from tests.harness.checkpoint.defects import DEFECTS, absolute_table
from tests.harness.checkpoint.drafts import Parts, Sound, change, drop, examined, faults, put

NOTES = {"served-as", "stored-dtype", "output-head", "input-embedding"}  # said of every draft
NOTE_ONLY = {"served-as", "input-embedding", "verifier-kind"}
CASES = [(name, rule, defect) for name, table in DEFECTS.items() for rule, defect in table]


@pytest.fixture(scope="module")
def sounds(tmp_path_factory) -> Callable[[str], Sound]:
    """A sound draft of each algorithm, made once."""
    made: dict[str, Sound] = {}

    def give(algorithm: str) -> Sound:
        if algorithm not in made:
            made[algorithm] = drafts.sound(tmp_path_factory.mktemp(algorithm), algorithm)
        return made[algorithm]

    return give


@pytest.fixture(scope="module")
def sound(sounds) -> Sound:
    return sounds("eagle3")


@pytest.mark.parametrize(
    ("algorithm", "rule", "defect"), CASES, ids=[f"{name}-{i}-{rule}" for i, (name, rule, _) in enumerate(CASES)]
)
def test_each_planted_defect_is_found_by_its_rule(sounds, algorithm, rule, defect):
    assert rule in faults(examined(sounds(algorithm), defect))


@pytest.mark.parametrize("algorithm", algorithms.NAMES)
def test_every_rule_of_an_algorithm_has_a_planted_defect(sounds, algorithm):
    tested = {rule for table in DEFECTS.values() for rule, _ in table}
    assert {finding.rule for finding in examined(sounds(algorithm))} - NOTE_ONLY <= tested
    special = {rule.name for rule in algorithms.load(algorithm).format.rules}
    written_as = sounds(algorithm).config["speculators_model_type"]
    assert special <= {rule for rule, _ in DEFECTS[written_as]}


@pytest.mark.parametrize("algorithm", algorithms.NAMES)
def test_a_sound_draft_has_no_fault_and_every_rule_answers(sounds, algorithm):
    findings = examined(sounds(algorithm))
    assert faults(findings) == set()
    assert {finding.rule for finding in findings if finding.verdict == "note"} == NOTES
    assert not [finding for finding in findings if finding.verdict == "not checked"]


def test_a_loadable_class_is_a_fault_and_an_entry_that_nothing_looks_up_is_a_note(sound):
    findings = examined(sound, put("config", auto_map={"": "draft.Config"}), files=("draft.py",))
    assert faults(findings) == set()
    assert len([f for f in findings if f.rule == "remote-code" and f.verdict == "note"]) == 2


def test_an_absolute_table_is_named_as_such(sound):
    said = next(f for f in examined(sound, absolute_table) if f.verdict == "fault" and f.rule == "vocabulary-tables")
    assert said.found == "d2t holds target ids"


def test_a_head_that_is_not_the_verifiers_is_a_note_and_no_fault(sound):
    findings = examined(sound, change("lm_head.weight", lambda t: t + 1))
    assert faults(findings) == set()
    assert "trained" in next(f for f in findings if f.rule == "output-head").found


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0"),
        ({"model_type": "gemma3_text"}, "norms that add 1"),
        ({"quantization_config": {"quant_method": "fp8"}}, "weights are fp8"),
    ],
)
def test_what_a_verifier_has_that_drafts_cannot_is_a_note(sound, changes, said):
    findings = examined(sound, put("verifier", **changes))
    assert said in next(f.found for f in findings if f.rule == "verifier-kind")
    assert faults(findings) == set()


def test_beside_a_verifier_of_another_width_a_draft_needs_its_own_head_and_embedding(sounds):
    def narrow(parts: Parts) -> None:
        parts["config"]["target_hidden_size"] = 128
        for name in ("lm_head.weight", "embed_tokens.weight"):
            parts["tensors"].pop(name, None)

    findings = examined(sounds("dflash2"), narrow)
    missing = next(f.found for f in findings if f.rule == "missing-tensors")
    assert "lm_head.weight" in missing and "embed_tokens.weight" in missing


@pytest.mark.parametrize(
    ("path", "said"),
    [("drafts/my-eagle-run", "would give eagle"), ("drafts/dspark", "would give dspark"), ("drafts/mine", None)],
)
def test_a_path_that_would_mislead_the_server_is_told(sound, path, said):
    subject = Subject(sound.config, sound.tensors, algorithm_of(sound.config), path=path)
    found = next(f.found for f in lint(subject) if f.rule == "served-as")
    assert (said in found) if said else ("would give" not in found)


def test_rules_that_need_the_verifier_say_so_without_it(sound):
    findings = lint(Subject(sound.config, sound.tensors, algorithm_of(sound.config)))
    assert {f.rule for f in findings if f.verdict == "not checked"} >= {"verifier-sizes", "stop-tokens", "max-position"}
    assert faults(findings) == set()


def paths(content: Any, here: tuple = ()) -> list[tuple]:
    """Where every value of a JSON object stands."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [path for key, value in inner for path in [(*here, key), *paths(value, (*here, key))]]


ANY_JSON = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 400), st.floats(allow_nan=False), st.text(max_size=4)
) | st.lists(st.integers(-1, 9), max_size=3)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_wrong_value_anywhere_gives_findings_and_never_an_exception(sounds, data):
    given = sounds(data.draw(st.sampled_from(algorithms.NAMES)))

    def defect(parts: Parts) -> None:
        *way, last = data.draw(st.sampled_from(paths(parts["config"])))
        inside = parts["config"]
        for key in way:
            inside = inside[key]
        inside[last] = data.draw(ANY_JSON | st.dictionaries(st.text(max_size=3), ANY_JSON, max_size=2))

    assert examined(given, defect)


def test_rules_wait_for_a_well_formed_config(sound):
    findings = examined(sound, drop("config", "transformer_layer_config"))
    assert next(f for f in findings if f.rule == "missing-tensors").verdict == "not checked"


def test_an_accepted_rule_becomes_a_note(sound):
    findings = accepting(examined(sound, put("layer", rms_norm_eps=1e-6)), {"norm-epsilon"})
    assert faults(findings) == set()
    assert next(f for f in findings if f.rule == "norm-epsilon").verdict == "note"


def test_end_of_turn_and_end_of_text_come_from_configs_tokenizer_and_template(sound):
    assert sound.facts.stop_tokens == {toy.TURN_END_ID: toy.TURN_END}


def test_a_bad_value_anywhere_in_a_small_draft_is_found(sound):
    for name, weight in sound.tensors.items():
        if weight.is_floating_point():
            broken = weight.clone()
            broken.view(-1)[torch.randint(weight.numel(), ())] = float("inf")
            assert "finite-values" in faults(examined(sound, put("tensors", **{name: broken}))), name
