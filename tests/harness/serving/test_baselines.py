"""Drafting without a checkpoint: what vLLM is told, and what is said where a package is missing."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.config import Reproduction
from harness.sections.serve import Baselines, Ngram, Suffix
from harness.serving import baselines
from harness.serving.baselines import asked_for, missing, speculative_config
from tests.harness.test_config import GOOD

BOTH = Baselines(ngram=Ngram(speculative_tokens=3), suffix=Suffix(speculative_tokens=8))


def test_only_what_has_a_section_is_asked_for():
    assert asked_for(BOTH) == ["ngram", "suffix"]
    assert asked_for(Baselines(suffix=BOTH.suffix)) == ["suffix"]
    assert asked_for(Baselines()) == []


def test_suffix_look_up_remembers_no_other_request():
    told = speculative_config("suffix", BOTH)
    assert told["method"] == "suffix" and told["num_speculative_tokens"] == 8
    assert told["suffix_decoding_max_cached_requests"] == 0, "one prompt of a benchmark would draft for the next"


def test_vllm_knows_every_field_of_both():
    vllm = find_spec("vllm")
    if vllm is None:
        pytest.skip("vLLM is not installed")
    declared = Path(vllm.origin).with_name("config").joinpath("speculative.py").read_text()
    for name in asked_for(BOTH):
        for field in speculative_config(name, BOTH):
            assert f"\n    {field}: " in declared, f"{name}: vLLM has no {field}"


def test_a_baseline_without_a_section_is_no_baseline():
    with pytest.raises(ValueError, match=r"baselines\.suffix: missing"):
        speculative_config("suffix", Baselines())


@pytest.mark.parametrize(("found", "variants"), [(None, ["none", "ngram"]), (object(), ["none", "ngram", "suffix"])])
def test_a_baseline_whose_package_is_absent_is_not_served(monkeypatch, found, variants):
    monkeypatch.setattr(baselines, "find_spec", lambda _: found)
    settings = {key: value for key, value in GOOD.items() if key != "smoke"}
    run = Reproduction.model_validate(settings | {"name": "toy", "baselines": BOTH.model_dump()})
    assert run.variants == [*variants, *run.algorithms]
    assert missing("ngram") is None
    assert missing("suffix") == (None if found else "package arctic-inference is not installed")
