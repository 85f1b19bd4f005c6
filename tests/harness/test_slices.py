"""Every command can read what its rule tells it, and a slice changes only with what its step depends on."""

import json
from pathlib import Path

import pytest

from harness import slices
from harness.capture.settings import CaptureSettings
from harness.config import Reproduction, load_reproduction, parse_settings
from harness.evaluation.settings import LosslessSettings, MatchSettings, MeasureSettings, ParitySettings
from harness.sections.evaluate import OutputMatch
from harness.sections.serve import Quantised
from harness.training.settings import TrainSettings


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    folder = tmp_path_factory.mktemp("reproductions")
    (folder / "toy").mkdir()
    (folder / "toy" / "reproduction.yaml").write_text(Path("tests/toy_reproduction.yaml").read_text())
    return load_reproduction("toy", folder=folder)


def test_every_command_accepts_its_slice(run: Reproduction):
    from harness.data.prepare import Settings as DataSettings
    from harness.verifiers.prepare import Settings as VerifierSettings

    for content, model in [
        (slices.verifier(run), VerifierSettings),
        (slices.data(run), DataSettings),
        (slices.capture(run), CaptureSettings),
        (slices.training(run, "eagle3"), TrainSettings),
        (slices.measure(run, "none"), MeasureSettings),
        (slices.measure(run, "ngram"), MeasureSettings),
        (slices.measure(run, "eagle3"), MeasureSettings),
        (slices.match(run, "eagle3"), MatchSettings),
        (slices.parity(run), ParitySettings),
        (slices.lossless(run), LosslessSettings),
    ]:
        parse_settings(slices.as_json(content), model)


def test_each_variant_tells_its_server_what_it_must_report(run: Reproduction):
    assert slices.measure(run, "none")["expected"] == {"method": None, "num_speculative_tokens": 0}
    assert slices.measure(run, "ngram")["speculative"]["method"] == "ngram"
    assert slices.measure(run, "ngram")["expected"] == {"method": "ngram", "num_speculative_tokens": 3}
    assert slices.measure(run, "eagle3")["expected"] == {"method": "eagle3", "num_speculative_tokens": 3}
    assert slices.measure(run, "eagle3")["speculative"] is None, "a draft's checkpoint says itself how it is served"


def test_the_same_content_is_the_same_text_in_any_order():
    assert slices.as_json({"b": 1, "a": [{"d": 1, "c": "é"}]}) == slices.as_json({"a": [{"c": "é", "d": 1}], "b": 1})


def test_training_settings_hold_every_default_of_the_algorithm(run: Reproduction):
    told = json.loads(slices.as_json(slices.training(run, "eagle3")))
    assert told["algorithm"]["speculative_tokens"] == 3 and "ttt_steps" in told["algorithm"]


def test_on_how_many_gpus_a_draft_is_trained_does_not_train_it_again(run: Reproduction):
    changed = run.model_copy(update={"training": run.training.model_copy(update={"processes": 2})})
    assert slices.training(changed, "eagle3") == slices.training(run, "eagle3")


def test_limits_that_only_judge_a_measurement_are_no_part_of_it(run: Reproduction):
    def with_changes(**changes: object) -> Reproduction:
        return run.model_copy(update={"evaluate": run.evaluate.model_copy(update=changes)})

    latency = run.evaluate.latency
    judged = latency.model_copy(update={"others_cpu_share_max": 0.5, "machine_drift_max": 0.01})
    measured = latency.model_copy(update={"rates": [0.5]})
    counted = OutputMatch(sources=["word_problems"], first_tokens=10)
    before = slices.measure(run, "eagle3")
    assert slices.measure(with_changes(latency=judged, output_match=counted, near_tie_nats=0.1), "eagle3") == before
    assert slices.measure(with_changes(latency=measured), "eagle3") != before


def test_every_difference_is_a_fault_only_in_float32_one_at_a_time_on_a_cpu(run: Reproduction):
    def exact(dtype: str, concurrency: int, gpus: int) -> bool:
        acceptance = run.evaluate.acceptance.model_copy(update={"concurrency": concurrency})
        changes = {
            "serve": run.serve.model_copy(update={"dtype": dtype}),
            "evaluate": run.evaluate.model_copy(update={"acceptance": acceptance}),
            "needs": run.needs.model_copy(update={"gpus": gpus}),
        }
        return slices.match(run.model_copy(update=changes), "eagle3")["exact"]

    assert exact("float32", 1, 0)
    assert not exact("bfloat16", 1, 0) and not exact("float32", 8, 0) and not exact("float32", 1, 1)


def test_a_verifier_in_8_bits_has_a_near_tie_of_its_own_and_is_never_exact(run: Reproduction):
    acceptance = run.evaluate.acceptance.model_copy(update={"concurrency": 1})
    changes = {
        "serve": run.serve.model_copy(update={"dtype": "float32"}),
        "evaluate": run.evaluate.model_copy(update={"acceptance": acceptance}),
        "quantised": Quantised(scheme="int8", algorithms=["eagle3"], near_tie_nats=0.75),
    }
    told = run.model_copy(update=changes)
    found = {name: slices.match(told, name) for name in ("eagle3", "eagle3_int8")}
    assert {name: (each["near_tie_nats"], each["exact"]) for name, each in found.items()} == {
        "eagle3": (run.evaluate.near_tie_nats, True), "eagle3_int8": (0.75, False),
    }  # fmt: skip


def test_what_is_kept_for_the_report_says_the_name_of_the_data_folder_and_not_where_it_lies(run: Reproduction):
    data = run.data.model_copy(update={"folder": "/home/someone/sets"})
    assert slices.whole(run.model_copy(update={"data": data}))["data"]["folder"] == "sets"
    assert slices.whole(run)["data"]["folder"] is None
