"""The comparison with upstream: what upstream is told, and what the figures say."""

from typing import Any

import pytest

import algorithms
from benchmarks.acceptance_against_upstream import _differences
from benchmarks.upstream_options import OPTIONS, as_arguments, upstream_options
from harness.config import load_reproduction


def knobs(name: str, **changes: Any) -> Any:
    given = load_reproduction("smollm2_135m").algorithms[name]
    return algorithms.config_class(name)(**given | changes)


@pytest.mark.parametrize("name", OPTIONS)
def test_upstream_understands_every_option_and_makes_as_many_drafts_as_we_train(name: str):
    from speculators.train.config import TrainConfig

    mine = knobs(name, layers=2)
    options = upstream_options(name, mine) | {"--verifier-name-or-path": "models/x"}
    theirs = TrainConfig.resolve(as_arguments(options)).flatten()
    assert theirs["speculator_type"] == name
    assert theirs["num_layers"] == 2 and theirs["full_attention_indices"] == [0, 1]
    assert theirs["draft_vocab_size"] == mine.draft_vocab_size
    assert theirs["mask_token_id"] == getattr(mine, "mask_token_id", None)
    for size in ("block_size", "max_anchors", "num_depths", "ttt_steps", "markov_rank", "selector_rank"):
        if hasattr(mine, size):
            assert theirs[size] == getattr(mine, size), size


@pytest.mark.parametrize("name", [n for n in OPTIONS if "causal" in algorithms.config_class(n).model_fields])
def test_a_block_is_as_causal_as_the_server_will_make_it(name: str):
    bidirectional = upstream_options(name, knobs(name))
    assert bidirectional["--full-attention-indices"] == [0] and bidirectional["--sliding-window-non-causal"]
    causal = upstream_options(name, knobs(name, causal=True, sliding_window=64))
    assert causal["--sliding-window"] == 64
    assert "--sliding-window-non-causal" not in causal and "--full-attention-indices" not in causal


def test_an_mlp_of_a_width_of_its_own_is_refused():
    name = next(iter(OPTIONS))
    with pytest.raises(ValueError, match=r"intermediate_size: .*Fix: "):
        upstream_options(name, knobs(name, intermediate_size=64))


def measured(accepted: list[int], drafts: int = 10) -> dict[str, Any]:
    sources = ["word_problems", "instructions"]
    rows = [{"id": str(i), "source": sources[i % 2], "accepted": a, "drafts": drafts} for i, a in enumerate(accepted)]
    return {"replies": rows}


def test_the_difference_is_paired_by_prompt_and_has_a_verdict():
    theirs = [2, 20, 4, 6, 8, 12, 3, 15, 9, 1]
    more = _differences({"ours": measured([a + 3 for a in theirs]), "upstream": measured(theirs)}, 200, 0)
    assert [figures["verdict"] for figures in more.values()] == ["more"] * 3
    assert more["all"]["difference"]["value"] == pytest.approx(0.3)
    assert more["all"]["upstream"] == pytest.approx(1 + sum(theirs) / 100)
    less = _differences({"ours": measured(theirs), "upstream": measured([a + 3 for a in theirs])}, 200, 0)
    assert [figures["verdict"] for figures in less.values()] == ["less"] * 3
    same = _differences({"ours": measured(theirs[::-1]), "upstream": measured(theirs)}, 200, 0)
    assert same["all"]["verdict"] == "equal within the interval"
    assert same["all"]["difference"]["low"] < 0 < same["all"]["difference"]["high"]


def test_a_prompt_that_one_side_did_not_answer_is_left_out():
    theirs = measured([5] * 10)
    ours = {"replies": theirs["replies"][2:]}
    assert _differences({"ours": ours, "upstream": theirs}, 200, 0)["all"]["difference"]["n"] == 8
