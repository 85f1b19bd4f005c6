"""Faults planted in a good draft, each of which must be named; nothing is said of the good one.

A random draft is good on replies that are made of its own drafts: each step is drafted by the reference loop and
accepted whole. No training is needed, and every fault costs acceptance.
"""

from types import SimpleNamespace

import pytest
import torch

import algorithms
from algorithms.suspects import changed
from harness.checkpoint.reading import read_checkpoint
from harness.checkpoint.writing import write_checkpoint
from harness.evaluation.diagnosis import diagnose
from harness.evaluation.loop import States, accepted_steps
from harness.evaluation.parity import run_parity
from harness.evaluation.settings import ParitySettings
from harness.verifiers.weights import load_weights
from tests import toy

K, AUX, REPLIES, STEPS = 3, (1, 3, 5), 10, 5
MASK = toy.END_OF_TEXT_ID
SETTINGS = ParitySettings(dtype="float32", bootstrap_resamples=200, seed=0, margin_tokens=0.05, scale="smoke")
EXTRA = {
    "eagle3": {"norm_output": True},
    "peagle": {"mask_token_id": MASK, "num_depths": K},
    "dflash": {"mask_token_id": MASK, "block_size": K + 1},
    "dspark": {"mask_token_id": MASK, "block_size": K, "markov_rank": 8},
    "dflash2": {"mask_token_id": MASK, "block_size": K + 1, "selector_rank": 8, "selector_top_k": 4},
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    return toy.write_verifier(tmp_path_factory.mktemp("diagnosis") / "verifier")


@torch.no_grad()
def reply_of_drafts(kind, draft, states, prompt, generator):
    """A reply whose drafts are right in every step: the drafts of the step, then a token at random."""
    tokens = [*prompt, int(torch.randint(256, (), generator=generator))]
    for _ in range(STEPS):
        given = torch.tensor(tokens)
        drafts = kind.propose(draft, given, states(tokens), K, first=len(tokens) - 2)[-1]
        tokens += [*drafts.tolist(), int(torch.randint(256, (), generator=generator))]
    return tokens[len(prompt) :]


def make(verifier, root, algorithm):
    """A good draft in `root`/good with replies that it drafts: (root, rows, kind)."""
    kind, weights = algorithms.load(algorithm), load_weights(verifier)
    size = toy.VOCABULARY if algorithm == "dflash2" else 96
    draft = toy.random_draft(weights, size, AUX, algorithm=algorithm, speculative_tokens=K, **EXTRA[algorithm]).eval()
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            if algorithm == "dflash" and name.endswith("v_proj.weight"):
                parameter *= 6  # what a row of a block sees must matter
    toy.write_draft(root / "good", draft, "models/toy", algorithm)
    states, generator = States(verifier, AUX, torch.float32), torch.Generator().manual_seed(4)
    rows = []
    for number in range(REPLIES):
        prompt = torch.randint(256, (10 + number,), generator=generator).tolist()
        reply = reply_of_drafts(kind, draft, states, prompt, generator)
        spec = {"accepted_per_step": [K] * STEPS, "drafted_per_step": [K] * STEPS}
        rows.append({"id": str(number), "source": "toy", "prompt_token_ids": prompt, "token_ids": reply, "spec": spec})
    return SimpleNamespace(root=root, rows=rows, kind=kind, verifier=verifier)


@pytest.fixture(scope="module")
def good(verifier, tmp_path_factory):
    made = {}

    def of(algorithm):
        if algorithm not in made:
            made[algorithm] = make(verifier, tmp_path_factory.mktemp(algorithm), algorithm)
        return made[algorithm]

    return of


def steps_of(world, config, tensors, dtype=torch.float32):
    """What a server accepts that reads this checkpoint."""
    weights, layers = load_weights(world.verifier), world.kind.aux_layers(config)
    draft = world.kind.restore(config, tensors, weights).to(dtype).eval()
    states = States(world.verifier, layers, dtype)
    return [
        accepted_steps(world.kind, draft, row, states([*row["prompt_token_ids"], *row["token_ids"]]), K)
        for row in world.rows
    ]


def served_as(world, steps):
    """The replies with other records of their verify steps."""
    return [
        row | {"spec": {"accepted_per_step": found, "drafted_per_step": [K] * len(found)}}
        for row, found in zip(world.rows, steps, strict=True)
    ]


def broken(world, tmp_path, change):
    """(folder of the checkpoint after `change`, its replies as a server serves them that reads it as it is written)."""
    config, tensors = read_checkpoint(world.root / "good")
    config, tensors = change(config, dict(tensors))
    config["speculators_config"].pop("verifier", None)
    write_checkpoint(tmp_path / "broken", config, tensors, "models/toy")
    return tmp_path / "broken", served_as(world, steps_of(world, config, tensors))


def with_keys(**keys):
    return lambda config, tensors: (config | keys, tensors)


def shifted_vocabulary(config, tensors):
    """Both tables one token too high, so that they agree with each other."""
    target = tensors["d2t"] + torch.arange(len(tensors["d2t"])) + 1
    marks = torch.zeros_like(tensors["t2d"])
    marks[target] = True
    return config, tensors | {"d2t": tensors["d2t"] + 1, "t2d": marks}


def with_a_norm_on_each_state(config, tensors):
    return config | {"fc_norm": True}, tensors | {f"fc_norm.{i}.weight": torch.ones(64) for i in range(len(AUX))}


def other_head(config, tensors):
    rolled = tensors["lm_head.weight"].roll(1, dims=0)
    return config, tensors | {"lm_head.weight": rolled}


# Trap -> (algorithm, what is written into the good checkpoint instead).
WRITTEN_WRONGLY = {
    "layer-ids": ("eagle3", with_keys(eagle_aux_hidden_state_layer_ids=[0, 2, 4])),
    "norm-before-residual": ("eagle3", with_keys(norm_before_residual=False)),
    "norm-output": ("eagle3", with_keys(norm_output=False)),
    "feature-norms": ("eagle3", with_a_norm_on_each_state),
    "vocabulary-offsets": ("eagle3", shifted_vocabulary),
    "output-head": ("eagle3", other_head),
    "mask-token": ("peagle", with_keys(mask_token_id=300)),
    "block-causality": ("dflash", with_keys(sliding_window_non_causal=False)),
}


def quick(first, names):
    """Parameters of which all but the first are slow."""
    return [name if name == first else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("algorithm", quick("eagle3", EXTRA))
def test_nothing_is_said_of_a_good_draft(good, algorithm):
    world = good(algorithm)
    found = run_parity(world.root / "good", world.verifier, world.rows, SETTINGS, expected_length=K + 1.0)
    assert found["benchmarks"]["toy"]["predicted_length"] == K + 1
    assert found["within"] and not found["falls_short"] and found["diagnosis"] is None


@pytest.mark.parametrize("trap", quick("layer-ids", WRITTEN_WRONGLY))
def test_a_fault_in_the_checkpoint_is_named(good, tmp_path, trap):
    """Served and predicted alike, and far below what the training's validation promised."""
    algorithm, change = WRITTEN_WRONGLY[trap]
    folder, rows = broken(good(algorithm), tmp_path, change)
    found = run_parity(folder, good(algorithm).verifier, rows, SETTINGS, expected_length=K + 1.0)
    assert found["within"] and found["falls_short"]
    assert found["diagnosis"]["trap"] == trap
    assert "the draft was trained so" in found["diagnosis"]["said"]


@pytest.mark.slow
@pytest.mark.parametrize("trap", ["norm-output", "mask-token", "block-causality", "layer-ids"])
def test_a_server_that_reads_a_good_checkpoint_otherwise_is_found_out(good, trap):
    world = good(WRITTEN_WRONGLY[trap][0])
    config, tensors = read_checkpoint(world.root / "good")
    reading = next(
        s
        for s in world.kind.suspects(config, tensors, load_weights(world.verifier), [toy.TURN_START_ID])
        if s.trap == trap
    )
    rows = served_as(world, steps_of(world, reading.config, reading.tensors))
    found = run_parity(world.root / "good", world.verifier, rows, SETTINGS)
    assert not found["within"]
    assert found["diagnosis"]["trap"] == trap
    assert reading.change in found["diagnosis"]["said"] and "the server reads it so" in found["diagnosis"]["said"]


@pytest.mark.slow
def test_another_precision_is_named(good):
    world = good("eagle3")
    config, tensors = read_checkpoint(world.root / "good")
    rows = served_as(world, steps_of(world, config, tensors, torch.bfloat16))
    found = run_parity(world.root / "good", world.verifier, rows, SETTINGS.model_copy(update={"margin_tokens": 0.0}))
    assert found["diagnosis"]["trap"] == "dtype"
    assert "bfloat16 instead of float32" in found["diagnosis"]["said"]


def test_rope_that_is_not_the_verifiers_is_named_before_anything_is_drafted(good, tmp_path):
    world = good("eagle3")

    def other_theta(config, tensors):
        layer = config["transformer_layer_config"] | {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}
        return config | {"transformer_layer_config": layer}, tensors

    folder, rows = broken(world, tmp_path, other_theta)
    found = run_parity(folder, world.verifier, rows, SETTINGS, expected_length=9.0)
    assert found["diagnosis"]["trap"] == "rope-of-verifier" and found["diagnosis"]["tried"] == []
    assert "rope_theta 50.0 (verifier 10000.0)" in found["diagnosis"]["said"]


def test_another_number_of_draft_tokens_is_named(good):
    world = good("eagle3")
    rows = [row | {"spec": {"accepted_per_step": [0] * 9, "drafted_per_step": [K + 2] * 9}} for row in world.rows]
    found = run_parity(world.root / "good", world.verifier, rows, SETTINGS)
    assert found["diagnosis"]["trap"] == "draft-tokens"
    assert found["diagnosis"]["said"] == "the server drafts 5 tokens a step, the checkpoint says 3"


def test_prompts_of_another_template_are_named(good):
    world = good("eagle3")
    messages = [{"role": "user", "content": "Hello"}]
    prompts = [{"id": "0", "source": "toy", "messages": messages}]
    rows = served_as(world, [[0] * STEPS] * REPLIES)
    found = run_parity(world.root / "good", world.verifier, rows, SETTINGS, prompts=prompts)
    assert found["diagnosis"]["trap"] == "chat-template"
    assert "0: the served prompt has 10 tokens" in found["diagnosis"]["said"]


@pytest.mark.slow
def test_replies_of_another_verifier_are_named_where_no_reading_explains_them(good):
    """The toy's replies are the draft's, not the verifier's: what is left when everything else fits."""
    world = good("eagle3")
    rows = served_as(world, [[0, 1, 0, 2, 0, 0]] * REPLIES)
    predicted = [[K] * STEPS] * REPLIES
    found = diagnose(world.root / "good", world.verifier, rows, predicted, SETTINGS)
    assert found["trap"] == "verifier" and "would say" in found["said"]
    assert {reading["trap"] for reading in found["tried"]} >= {"layer-ids", "norm-output", "rope", "dtype"}


def test_a_reading_that_the_draft_cannot_take_is_told_and_passed_over(good, monkeypatch):
    world = good("eagle3")

    def one(config, tensors, *_):
        yield changed("layer-ids", config, tensors, eagle_aux_hidden_state_layer_ids=[1])

    kind = SimpleNamespace(**{name: getattr(world.kind, name) for name in world.kind.__dataclass_fields__})
    kind.suspects = one
    monkeypatch.setattr("harness.evaluation.diagnosis.algorithms.load", lambda _: kind)
    rows = served_as(world, [[0] * STEPS] * REPLIES)
    found = diagnose(world.root / "good", world.verifier, rows, [[K] * STEPS] * REPLIES, SETTINGS)
    assert "size mismatch" in found["tried"][0]["error"] or "Error" in found["tried"][0]["error"]
