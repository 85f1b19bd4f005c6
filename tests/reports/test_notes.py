"""What stands beside the tables on how they came about."""

from reports.collect import load_run
from reports.notes import all_notes
from reports.rows import make_rows
from reports.soundness import same_prompt
from tests.reports.synthetic import ALGORITHM, NAME, change, difference, write_extra


def notes(results):
    """The notes of a run."""
    run = load_run(results, NAME)
    return all_notes(run, make_rows(run))


def test_loads_trainings_and_replies_are_told_with_their_settings(results):
    found = notes(results)
    assert found["speed"].startswith("20 requests to word problems at each load after 2 to warm up, greedy")
    assert "own lengths, in tokens a step: n-gram look-up 3 and eagle3 3." in found["speed"]
    assert found["training"].startswith("1 epoch, up to 64 tokens in an optimiser step, learning rate 0.001 (cosine)")
    assert "at least 61% of the probability of its likeliest (0.5 nats)" in found["output"]
    assert "up to 64 tokens at temperature 0, 4 requests at once" in found["output"]


def test_kinds_of_sampled_tokens_that_are_too_few_are_named(results):
    figures = [{"metric": "sampling_positions", "benchmark": kind, "value": n}
               for kind, n in {"bonus": 35, "plain": 64, "draft": 1800}.items()]  # fmt: skip
    figures += [{"metric": "sampling_detectable_bias", "benchmark": kind, "value": value}
                for kind, value in {"plain": 0.28, "draft": 0.04}.items()]  # fmt: skip
    write_extra(results, f"lossless/{ALGORITHM}.json", figures)
    told = notes(results)["further_sampling"]
    assert "8 prompts, 8 replies each of up to 32 tokens, at temperature 1.3" in told
    assert "Too few to show much: bonus tokens (behind drafts that were all accepted; 35) and plain tokens" in told
    assert "draft tokens" not in told


def test_the_one_prompt_whose_reply_differs_with_every_draft_is_named(results):
    assert same_prompt(load_run(results, NAME)) is None
    for variant in ("ngram", ALGORITHM):
        change(
            results / f"match/{variant}.json",
            lambda content: content.update(differences=[difference(3, 0.1, "benign")]),
        )
    assert same_prompt(load_run(results, NAME)) == "instructions-heldout-00003"
    assert "that to instructions-heldout-00003." in notes(results)["output"]
