"""The estimate of harness.training.validation is chained, as the engine's acceptance is: worked by hand."""

import torch

from harness.evaluation.walk import walk
from harness.training.validation import Walk, walk_metrics

PROMPT, DRAFTS = 4, 3
# Of 10 steps, 8 have the first draft right; half of those the second as well; half of those the third: 0.8, 0.5, 0.5.
ACCEPTED = [0, 1, 3, 1, 2, 0, 1, 2, 1, 3]


def scripted_reply():
    """(drafts [S-1, K], token ids [S]) of a reply that takes exactly these steps."""
    length = PROMPT + 1 + sum(accepted + 1 for accepted in ACCEPTED)
    token_ids, wrong, newest = list(range(length)), 999, PROMPT
    drafts_SK = torch.full((length - 1, DRAFTS), wrong)
    for accepted in ACCEPTED:
        # Behind the wrong draft the others are right again, which must count for nothing.
        ahead = torch.tensor(token_ids[newest + 1 : newest + 1 + DRAFTS])
        drafts_SK[newest - 1, : len(ahead)] = ahead
        drafts_SK[newest - 1, accepted : accepted + 1] = wrong
        newest += accepted + 1
    return drafts_SK, token_ids


def test_chances_of_0_8_0_5_and_0_5_one_after_another_give_a_length_of_2_4():
    drafts_SK, token_ids = scripted_reply()
    steps = walk(drafts_SK[PROMPT - 1 :], token_ids, PROMPT)
    assert steps == ACCEPTED
    found = Walk(len(steps), [sum(accepted > position for accepted in steps) for position in range(DRAFTS)])
    assert found.acceptance_length_pooled == 2.4  # 1 + 0.8 + 0.4 + 0.2, not 1 + 0.8 + 0.5 + 0.5
    assert walk_metrics(found)["acceptance_rate_per_position"] == [0.8, 0.4, 0.2]
