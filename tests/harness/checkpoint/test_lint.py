"""Every rule of the linter, each against a draft with that one defect; and a sound draft, which has none."""

import copy
import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness.checkpoint.findings import Finding, Subject, VerifierFacts
from harness.checkpoint.lint import accepting, algorithm_of, lint
from harness.checkpoint.reading import open_checkpoint
from harness.checkpoint.verifier_facts import read_facts
from harness.verifiers.weights import load_weights
from tests import toy

Parts = dict[str, Any]  # config, layer, section, tensors, verifier: what a defect may change
NOTES = {"served-as", "stored-dtype", "output-head", "input-embedding"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    """(a sound draft with a reduced vocabulary, its verifier)."""
    root = tmp_path_factory.mktemp("lint")
    verifier = toy.write_verifier(root / "verifier")
    draft = toy.random_draft(load_weights(verifier), norm_before_fc=True)
    return toy.write_draft(root / "draft", draft, "models/toy"), verifier


@pytest.fixture(scope="module")
def sound(folders) -> tuple[dict[str, Any], dict[str, Tensor], VerifierFacts]:
    draft, verifier = folders
    return *open_checkpoint(draft), read_facts(verifier)


def examined(sound, defect: Callable[[Parts], Any] | None = None, files: tuple[str, ...] = ()) -> list[Finding]:
    config, tensors, facts = sound
    parts: Parts = {"config": copy.deepcopy(config), "tensors": dict(tensors), "verifier": copy.deepcopy(facts.config)}
    parts |= {"layer": parts["config"]["transformer_layer_config"], "section": parts["config"]["speculators_config"]}
    if defect:
        defect(parts)
    verifier = replace(facts, config=parts["verifier"])
    return lint(Subject(parts["config"], parts["tensors"], algorithm_of(parts["config"]), list(files), verifier))


def faults(findings: list[Finding]) -> set[str]:
    return {finding.rule for finding in findings if finding.verdict == "fault"}


def put(part: str, **values: Any) -> Callable[[Parts], None]:
    return lambda parts: parts[part].update(values)


def drop(part: str, *names: str) -> Callable[[Parts], None]:
    def defect(parts: Parts) -> None:
        for name in names:
            del parts[part][name]

    return defect


def rope(**values: Any) -> Callable[[Parts], None]:
    return put("layer", rope_parameters={"rope_type": "default", "rope_theta": 10000.0} | values)


def change(name: str, how: Callable[[Tensor], Tensor]) -> Callable[[Parts], None]:
    return lambda parts: parts["tensors"].update({name: how(parts["tensors"][name])})


def absolute_table(parts: Parts) -> None:
    parts["tensors"]["d2t"] = parts["tensors"]["t2d"].nonzero().flatten()


def without_stop_token(parts: Parts) -> None:
    kept = parts["tensors"]["t2d"].nonzero().flatten()
    kept[-1] = toy.TURN_END_ID + 1  # <|im_end|> is the last of them; an unused row takes its place
    parts["tensors"]["d2t"] = kept - torch.arange(kept.numel())
    parts["tensors"]["t2d"] = torch.zeros(toy.VOCABULARY, dtype=torch.bool).index_fill(0, kept, True)


def full_vocabulary_with_tables(parts: Parts) -> None:
    parts["config"]["draft_vocab_size"] = toy.VOCABULARY
    parts["tensors"]["lm_head.weight"] = torch.zeros(toy.VOCABULARY, 64)


def one_bad_value(tensor: Tensor) -> Tensor:
    return tensor.index_fill(0, torch.tensor([0]), float("nan"))


def swap_first_two(offsets: Tensor) -> Tensor:
    target = offsets + torch.arange(offsets.numel())
    target[[0, 1]] = target[[1, 0]]
    return target - torch.arange(offsets.numel())


DEFECTS: list[tuple[str, Callable[[Parts], Any]]] = [
    ("top-level-model-type", put("config", model_type="speculator_model")),
    ("remote-code", put("config", auto_map={"": "draft.Config"})),
    ("remote-code", put("layer", auto_map={"AutoModel": "draft.Model"})),
    ("verifier-path", lambda p: p["section"]["verifier"].update(name_or_path="/home/someone/model")),
    ("verifier-path", lambda p: p["section"]["verifier"].update(name_or_path="C:\\models\\toy")),
    ("verifier-path", lambda p: p["section"]["verifier"].update(name_or_path="../model")),
    ("structure", drop("config", "speculators_config")),
    ("structure", put("section", default_proposal_method="tree")),
    ("structure", put("section", proposal_methods=[])),
    ("structure", put("section", proposal_methods=[{"proposal_type": "greedy", "speculative_tokens": 0}])),
    ("structure", lambda p: p["section"]["verifier"].pop("name_or_path")),
    ("structure", drop("config", "transformer_layer_config")),
    ("structure", put("config", transformer_layer_config="llama")),
    ("structure", drop("layer", "rms_norm_eps")),
    ("structure", drop("layer", "head_dim")),
    ("structure", put("layer", hidden_act="gelu")),
    ("algorithm", put("config", speculators_model_type="mtp")),
    ("algorithm", put("section", algorithm="another")),
    ("algorithm-keys", drop("config", "norm_before_residual")),
    ("algorithm-keys", drop("config", "eagle_aux_hidden_state_layer_ids")),
    ("algorithm-keys", drop("config", "draft_vocab_size")),
    ("algorithm-keys", put("config", norm_output="true")),
    ("algorithm-keys", put("config", norm_befor_fc=True)),
    ("draft-architecture", put("layer", model_type="gpt2")),
    ("draft-architecture", put("layer", is_causal=False)),
    ("aux-count", put("layer", num_aux_hidden_states=4)),
    (
        "aux-count",
        lambda p: (
            p["config"].update(eagle_aux_hidden_state_layer_ids=[1, 3]),
            p["layer"].pop("num_aux_hidden_states"),
        ),
    ),
    ("attention-bias", put("layer", model_type="qwen3", attention_bias=True)),
    ("feature-norms", put("config", fc_norm=True)),
    ("rope-written", drop("layer", "rope_parameters")),
    ("rope-written", put("layer", rope_theta=10000.0)),
    ("rope-written", rope(mrope_section=[4, 6, 6])),
    ("rope-written", rope(rope_type="spiral")),
    ("rope-written", rope(rope_type="llama3", factor=8.0)),
    ("layer-ids", put("config", eagle_aux_hidden_state_layer_ids=[5, 1, 3])),
    ("layer-ids", put("config", eagle_aux_hidden_state_layer_ids=[1, 3, 3])),
    ("layer-ids", put("config", eagle_aux_hidden_state_layer_ids=[1, 3, 7])),
    ("layer-ids", put("config", eagle_aux_hidden_state_layer_ids=[-1, 3, 5])),
    ("sliding-window", put("layer", layer_types=["full_attention"] * 2)),
    ("sliding-window", put("layer", layer_types=["sliding_attention"], sliding_window=None)),
    ("sliding-window", lambda p: (p["layer"].pop("layer_types"), p["layer"].update(sliding_window=8))),
    ("missing-tensors", drop("tensors", "fc.weight")),
    ("missing-tensors", drop("tensors", "d2t")),
    ("missing-tensors", drop("tensors", "lm_head.weight")),
    ("missing-tensors", drop("tensors", "input_norm.weight")),
    ("missing-tensors", put("layer", model_type="qwen3")),
    ("unexpected-tensors", put("config", norm_before_fc=False)),
    ("unexpected-tensors", put("tensors", **{"verifier_norm.weight": torch.ones(64)})),
    ("unexpected-tensors", put("tensors", **{"layers.0.self_attn.o_proj.bias": torch.ones(64)})),
    ("unexpected-tensors", full_vocabulary_with_tables),
    ("tensor-shapes", change("layers.0.self_attn.q_proj.weight", lambda t: t[:, :64])),
    ("tensor-shapes", put("config", eagle_aux_hidden_state_layer_ids=[1, 3])),
    ("tensor-shapes", put("tensors", **{"embed_tokens.weight": torch.ones(96, 64)})),
    ("finite-values", change("norm.weight", one_bad_value)),
    ("vocabulary-tables", absolute_table),
    ("vocabulary-tables", lambda p: (absolute_table(p), p["tensors"].pop("t2d"))),
    ("vocabulary-tables", change("d2t", swap_first_two)),
    ("vocabulary-tables", change("d2t", lambda t: t - 1000)),
    ("vocabulary-tables", change("d2t", lambda t: t.int())),
    ("vocabulary-tables", change("t2d", lambda t: t.roll(1))),
    ("vocabulary-tables", change("t2d", lambda t: t.long())),
    ("vocabulary-tables", put("config", draft_vocab_size=toy.VOCABULARY + 1)),
    ("verifier-sizes", put("verifier", hidden_size=128)),
    ("verifier-sizes", put("verifier", vocab_size=512)),
    ("verifier-architecture", lambda p: p["section"]["verifier"].update(architectures=["Qwen3ForCausalLM"])),
    ("rope-of-verifier", rope(rope_theta=1e6)),
    ("rope-of-verifier", rope(rope_type="linear", factor=4.0)),
    ("rope-of-verifier", put("verifier", rope_parameters=None, rope_theta=1e6)),
    ("norm-epsilon", put("layer", rms_norm_eps=1e-6)),
    ("max-position", put("layer", max_position_embeddings=128)),
    ("leaking-window", lambda p: (p["verifier"].update(sliding_window=64), p["layer"].pop("layer_types"))),
    ("stop-tokens", without_stop_token),
]


@pytest.mark.parametrize(("rule", "defect"), DEFECTS, ids=[f"{i}-{rule}" for i, (rule, _) in enumerate(DEFECTS)])
def test_each_planted_defect_is_found_by_its_rule(sound, rule, defect):
    assert rule in faults(examined(sound, defect))


def test_every_rule_has_a_planted_defect(sound):
    tested = {rule for rule, _ in DEFECTS} | NOTES | {"pickled-files"}
    assert {finding.rule for finding in examined(sound)} == tested


def test_a_sound_draft_has_no_fault_and_every_rule_answers(sound):
    findings = examined(sound)
    assert faults(findings) == set()
    assert {finding.rule for finding in findings if finding.verdict == "note"} == NOTES
    assert not [finding for finding in findings if finding.verdict == "not checked"]


@pytest.mark.parametrize(
    "knobs",
    [
        {"architecture": "qwen3", "layers": 2, "draft_vocab_size": toy.VOCABULARY},
        {"fc_norm": True, "norm_output": True, "sliding_window": 8, "aux_layers": (0, 2, 4, 6)},
        {"train_head": True, "norm_before_residual": False, "aux_layers": (2,)},
    ],
)
def test_drafts_of_every_kind_are_sound_as_exported(folders, tmp_path, knobs):
    verifier = folders[1]
    draft = toy.write_draft(tmp_path / "draft", toy.random_draft(load_weights(verifier), **knobs), "toy/verifier")
    config, tensors = open_checkpoint(draft)
    assert faults(lint(Subject(config, tensors, algorithm_of(config), [], read_facts(verifier)))) == set()


def test_a_pickled_file_beside_the_weights_is_a_fault(sound):
    assert faults(examined(sound, files=("model.safetensors", "mask_embedding.pt"))) == {"pickled-files"}


def test_an_absolute_table_is_named_as_such(sound):
    said = next(f for f in examined(sound, absolute_table) if f.verdict == "fault" and f.rule == "vocabulary-tables")
    assert said.found == "d2t holds target ids"


def test_a_head_that_is_not_the_verifiers_is_a_note_and_no_fault(sound):
    findings = examined(sound, change("lm_head.weight", lambda t: t + 1))
    assert faults(findings) == set()
    assert "trained" in next(f for f in findings if f.rule == "output-head").found


def test_rules_that_need_the_verifier_say_so_without_it(sound):
    config, tensors, _ = sound
    findings = lint(Subject(config, tensors, algorithm_of(config)))
    assert {f.rule for f in findings if f.verdict == "not checked"} >= {"verifier-sizes", "stop-tokens", "max-position"}
    assert faults(findings) == set()


def paths(content: Any, here: tuple = ()) -> list[tuple]:
    """Where every value of a JSON object stands."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [path for key, value in inner for path in [(*here, key), *paths(value, (*here, key))]]


ANY_JSON = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 400), st.floats(allow_nan=False), st.text(max_size=4)
) | st.lists(st.integers(-1, 9), max_size=3)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_wrong_value_anywhere_gives_findings_and_never_an_exception(sound, data):
    def defect(parts: Parts) -> None:
        *way, last = data.draw(st.sampled_from(paths(parts["config"])))
        inside = parts["config"]
        for key in way:
            inside = inside[key]
        inside[last] = data.draw(ANY_JSON | st.dictionaries(st.text(max_size=3), ANY_JSON, max_size=2))

    assert examined(sound, defect)


def test_rules_wait_for_a_well_formed_config(sound):
    findings = examined(sound, drop("config", "transformer_layer_config"))
    assert next(f for f in findings if f.rule == "missing-tensors").verdict == "not checked"


def test_an_accepted_rule_becomes_a_note(sound):
    findings = accepting(examined(sound, put("layer", rms_norm_eps=1e-6)), {"norm-epsilon"})
    assert faults(findings) == set()
    assert next(f for f in findings if f.rule == "norm-epsilon").verdict == "note"


def test_end_of_turn_and_end_of_text_come_from_configs_tokenizer_and_template(sound):
    assert sound[2].stop_tokens == {toy.TURN_END_ID: toy.TURN_END}


@pytest.fixture
def run_lint(monkeypatch) -> Callable[..., int]:
    """Runs `python -m harness.checkpoint lint ...` in this process and gives its exit code."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["harness.checkpoint", "lint", *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("harness.checkpoint", run_name="__main__")
        return int(ended.value.code or 0)

    return run


def test_the_command_exits_0_on_a_sound_draft_and_writes_what_every_rule_said(folders, tmp_path, run_lint):
    draft, verifier = folders
    assert run_lint(str(draft), "--verifier", str(verifier), "--out", str(tmp_path / "lint.json")) == 0
    said = json.loads((tmp_path / "lint.json").read_text())
    assert said["faults"] == 0
    assert {rule["rule"] for rule in said["rules"]} >= {"missing-tensors", "stop-tokens"}


def test_the_command_exits_1_on_a_fault_and_2_on_bad_input(folders, tmp_path, run_lint, capsys):
    config = json.loads((folders[0] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    assert run_lint(str(tmp_path)) == 2
    assert "no model.safetensors" in capsys.readouterr().err
    (tmp_path / "model.safetensors").write_bytes((folders[0] / "model.safetensors").read_bytes())
    assert run_lint(str(tmp_path)) == 1
    assert "top-level-model-type" in capsys.readouterr().out
    assert run_lint(str(tmp_path), "--accept", "nonsense") == 2
    assert "use one of" in capsys.readouterr().err
