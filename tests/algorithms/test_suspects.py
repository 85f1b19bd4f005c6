"""Other readings of a checkpoint, and drafts from a position on."""

import pytest
import torch

import algorithms
from algorithms import suspects as shared
from tests.algorithms import small

SETTINGS = {
    "eagle3": {"norm_before_fc": True},
    "peagle": {"num_depths": 3},
    "dflash": {"block_size": 4},
    "dspark": {"block_size": 3, "markov_rank": 4},
    "dflash2": {"block_size": 4, "selector_rank": 4, "selector_top_k": 4, "draft_vocab_size": None},
}


def checkpoint(name):
    draft = small.make_draft(name, **SETTINGS.get(name, {}))
    return draft, *algorithms.load(name).export(draft)


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_drafts_from_a_position_on_are_those_of_all_positions(name):
    draft, propose = small.make_draft(name, **SETTINGS.get(name, {})), algorithms.load(name).propose
    tokens, states = small.sequence(14)
    whole = propose(draft, tokens, states, 3)
    for first in (0, 5, 12):
        assert torch.equal(propose(draft, tokens, states, 3, first=first), whole[first:])


@pytest.mark.parametrize("name", algorithms.NAMES)
def test_every_reading_can_be_restored_and_reads_something_else_than_is_written(name):
    kind = algorithms.load(name)
    draft, config, tensors = checkpoint(name)
    before = {key: tensor.clone() for key, tensor in tensors.items()}
    verifier = small.verifier_weights()
    readings = list(kind.suspects(config, tensors, verifier, [3, small.MASK]))
    assert {"layer-ids", "rope", "output-head"} <= {reading.trap for reading in readings} | {"output-head"}
    assert len({(reading.trap, reading.change) for reading in readings}) == len(readings)
    for reading in readings:
        same = all(torch.equal(tensors[key], reading.tensors[key]) for key in tensors.keys() & reading.tensors.keys())
        assert reading.config != config or not same or tensors.keys() != reading.tensors.keys()
        kind.restore(reading.config, reading.tensors, verifier)
        assert len(kind.aux_layers(reading.config)) == len(small.AUX)
    assert all(torch.equal(before[key], tensors[key]) for key in before), "nothing is changed in place"
    assert kind.export(draft)[0] == config


def test_traps_of_one_algorithm_are_its_own():
    traps = {}
    for name in algorithms.NAMES:
        _, config, tensors = checkpoint(name)
        found = algorithms.load(name).suspects(config, tensors, small.verifier_weights(), [3])
        traps[name] = {suspect.trap for suspect in found}
    assert "norm-output" in traps["eagle3"] and "norm-output" not in traps["peagle"]
    assert "mask-token" not in traps["eagle3"] and "mask-token" in traps["peagle"] & traps["dflash"] & traps["dspark"]
    assert (
        "block-causality" in traps["dflash2"] & traps["dspark"] and "block-layout" in traps["dspark"] - traps["dflash"]
    )


def test_target_ids_in_place_of_offsets_are_one_of_the_readings():
    _, config, tensors = checkpoint("eagle3")
    kept = tensors["t2d"].nonzero().flatten()
    written = tensors | {"d2t": kept}  # absolute, where offsets should stand
    found = {reading.change: reading.tensors["d2t"] for reading in shared.vocabulary(config, written)}
    assert torch.equal(found["d2t as target ids"], tensors["d2t"])
    assert torch.equal(found["the tokens that t2d marks"], tensors["d2t"])


def test_layer_ids_are_shifted_within_the_verifier_only():
    _, config, tensors = checkpoint("eagle3")
    key = "eagle_aux_hidden_state_layer_ids"
    verifier = small.verifier_weights()
    found = [reading.config[key] for reading in shared.layer_ids(config, tensors, key, verifier)]
    assert found == [[2, 3, 5], [0, 1, 3]]
    top = config | {key: [0, 2, 5]}
    assert list(shared.layer_ids(top, tensors, key, verifier)) == []


def test_a_window_is_read_as_full_attention():
    draft = small.make_draft("eagle3", sliding_window=8)
    config, tensors = algorithms.load("eagle3").export(draft)
    (reading,) = shared.window(config, tensors)
    assert reading.change == "full attention instead of a window of 8"
    assert reading.config["transformer_layer_config"]["layer_types"] == ["full_attention"]
