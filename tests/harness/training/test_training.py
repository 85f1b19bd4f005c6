"""Packing, the validation walk, the schedule and faults of the user, on a toy verifier and made-up states."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.capture.store import Store
from harness.errors import UserError
from harness.files import read_jsonl
from harness.sections.training import Training
from harness.training.__main__ import _check_mask_token
from harness.training.optimizers import rate_share
from harness.training.packing import epoch_packs, make_batch, split_rows
from harness.training.validation import estimate
from tests import toy
from tests.harness.training.toy_training import SETTINGS, TRAINING, make_store, run


@given(
    st.lists(st.integers(2, 300), min_size=2, max_size=60), st.integers(16, 2000), st.integers(0, 5), st.integers(0, 3)
)
@settings(deadline=None, max_examples=60)
def test_every_row_stands_in_exactly_one_pack_of_an_epoch_and_the_order_follows_from_the_seed(
    lengths, size, seed, epoch
):
    rows = list(range(len(lengths)))
    packs = epoch_packs(rows, lengths, size, seed, epoch)
    assert sorted(row for pack in packs for row in pack) == rows
    assert packs == epoch_packs(rows, lengths, size, seed, epoch)
    assert all(sum(lengths[row] for row in pack) <= 2 * size + 2 * max(lengths) for pack in packs)


@given(
    st.lists(st.integers(2, 300), min_size=2, max_size=60), st.integers(16, 2000), st.integers(0, 5), st.integers(0, 3)
)
@settings(deadline=None, max_examples=60)
def test_packs_of_unequal_documents_differ_from_their_mean_by_less_than_one_document(lengths, size, seed, epoch):
    packs = epoch_packs(range(len(lengths)), lengths, size, seed, epoch)
    wanted = sum(lengths) / max(1, round(sum(lengths) / size))
    assert all(abs(sum(lengths[row] for row in pack) - wanted) <= max(lengths) for pack in packs)


@given(st.integers(2, 500), st.floats(0.001, 0.49), st.integers(0, 9))
def test_the_split_loses_and_repeats_no_row_and_leaves_both_sides_something(rows, share, seed):
    training, validation = split_rows(rows, share, seed)
    assert sorted(training + validation) == list(range(rows)) and training and validation


def test_a_pack_is_its_documents_one_after_another(tmp_path):
    store = make_store(tmp_path)
    batch = make_batch(store, [3, 0])
    assert batch.document_S.tolist() == [0] * 25 + [1] * 20
    assert torch.equal(batch.token_ids_S, torch.cat([store[3].token_ids, store[0].token_ids]))
    assert torch.equal(batch.aux_states_SAH[25:], store[0].states[:, :3])
    assert torch.equal(batch.last_state_SH[:25], store[3].states[:, 3])
    assert batch.loss_mask_S.tolist() == ([False] * 5 + [True] * 20) + ([False] * 5 + [True] * 15)


def test_validation_pools_the_steps_of_all_replies(tmp_path):
    store = make_store(tmp_path)

    def all_right(draft, token_ids, aux_states, num_draft_tokens, first):
        ids = torch.cat([token_ids, torch.tensor([toy.TURN_END_ID]), torch.zeros(8, dtype=torch.long)])
        return torch.stack([ids[2 + k : 1 + k + len(token_ids)] for k in range(num_draft_tokens)], 1)[first:]

    # The prefill gives one token; 15 = 3 * 4 + 3 and 26 = 6 * 4 + 2 are left, the last steps without a bonus.
    walk = estimate(torch.nn.Module(), all_right, store, [0, 1], 3)
    assert (walk.drafts, walk.accepted_per_position) == (11, [11, 11, 10])
    assert walk.acceptance_length_pooled == 1 + 32 / 11


def test_a_reply_of_one_token_has_no_step_of_validation(tmp_path):
    """All that has states is its prompt, so its mask is empty; in the second reply the prompt is 5 tokens long."""

    def all_wrong(draft, token_ids, aux_states, num_draft_tokens, first):
        assert first == 4
        return torch.full((len(token_ids) - first, num_draft_tokens), -1)

    walk = estimate(torch.nn.Module(), all_wrong, make_store(tmp_path, lengths=(5, 12)), [0, 1], 3)
    assert (walk.drafts, walk.accepted_per_position) == (7, [0, 0, 0])


@pytest.mark.parametrize(("schedule", "halfway", "last"), [("cosine", 0.51, 0.0203), ("linear", 0.51, 0.0309)])
def test_the_learning_rate_rises_then_falls_to_two_percent(schedule, halfway, last):
    training = Training(**TRAINING | {"warmup_share": 0.1, "schedule": schedule})
    shares = [rate_share(step, 100, training) for step in range(100)]
    assert shares[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert max(shares) == shares[10] == 1.0 and shares[10:] == sorted(shares[10:], reverse=True)
    assert (shares[55], shares[99]) == (pytest.approx(halfway), pytest.approx(last, rel=0.01))


def test_a_constant_learning_rate_rises_and_stays():
    training = Training(**TRAINING | {"warmup_share": 0.1, "schedule": "constant"})
    assert [rate_share(step, 20, training) for step in (0, 1, 2, 19)] == [0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training": TRAINING | {"epoch": 2}}, "no such key. Fix: epochs"),
        ({"training": TRAINING | {"epochs": "2"}}, "training.epochs = '2'"),
        ({"algorithm": {"speculative_tokens": 3, "draft_vocab_size": 10**6}}, "draft_vocab_size = 1000000"),
        ({"algorithm": {"speculative_tokens": 0}}, "speculative_tokens = 0"),
    ],
)
def test_a_bad_setting_ends_with_one_line_and_exit_code_2(place, changes, said):
    done = run(place, "bad", SETTINGS | changes)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert not (place / "bad/draft").exists()


def test_a_folder_with_something_else_in_it_is_refused_before_training(place):
    (place / "taken/draft").mkdir(parents=True)
    (place / "taken/draft/mine.txt").write_text("mine")
    done = run(place, "taken")
    assert done.returncode == 2 and "holds mine.txt" in done.stderr and "Traceback" not in done.stderr
    assert (place / "taken/draft/mine.txt").exists() and not (place / "taken/state").exists()


def test_a_rate_that_diverges_ends_with_one_line(place):
    done = run(place, "diverged", SETTINGS | {"training": TRAINING | {"learning_rate": 1e30}})
    assert done.returncode == 2 and "training.learning_rate = 1e+30" in done.stderr and "Traceback" not in done.stderr


def test_held_out_replies_of_one_token_end_with_one_line(tmp_path):
    toy.write_verifier(tmp_path / "verifier")
    _, held_out = split_rows(10, TRAINING["validation_share"], TRAINING["seed"])
    lengths = [5 if row in held_out else 20 for row in range(10)]
    make_store(tmp_path / "capture", tmp_path / "verifier", lengths)
    done = run(tmp_path, "short")
    assert done.returncode == 2 and "training.validation_share = 0.2: none" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "short/draft").exists()


def test_a_training_goes_on_from_a_checkpoint_and_says_so(place):
    assert run(place, "first").returncode == 0
    settings_ = SETTINGS | {"algorithm": SETTINGS["algorithm"] | {"init_from": "first/draft"}}
    done = run(place, "second", settings_)
    assert done.returncode == 0, done.stderr
    assert "going on from first/draft; starting anew: nothing" in done.stdout + done.stderr
    assert "layers of the draft: llama, of the verifier: llama" in done.stdout + done.stderr
    first, second = (read_jsonl(place / f"{name}/state/metrics.jsonl")[0]["loss"] for name in ("first", "second"))
    assert second < first, "the first step already reads trained weights"


def test_a_vocabulary_of_another_size_than_the_checkpoints_is_refused(place):
    assert run(place, "first").returncode == 0
    algorithm = SETTINGS["algorithm"] | {"init_from": "first/draft", "draft_vocab_size": 32}
    done = run(place, "third", SETTINGS | {"algorithm": algorithm})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "draft_vocab_size = 32: init_from has 64. Fix: set 64" in done.stderr


@pytest.mark.parametrize(("token", "said"), [(4096, "the vocabulary has"), (7, "stands in row-")])
def test_a_mask_token_that_the_text_has_or_the_vocabulary_lacks_is_refused(place, token, said):
    with pytest.raises(UserError, match=rf"mask_token_id = {token}: {said}.*Fix: "):
        _check_mask_token(Store(place / "capture"), token)
    _check_mask_token(Store(place / "capture"), 300)
