"""The order in which a training reads its packs, wherever it starts."""

from hypothesis import given
from hypothesis import strategies as st

from harness.training.packing import reading_order


def read(packs, validation_rows, step):
    """What the loop asks the store for, from `step` on: packs, and the validation's after each epoch."""
    asked = []
    while step < len(packs):
        asked.append(packs[step][1])
        step += 1
        if step == len(packs) or packs[step][0] != packs[step - 1][0]:
            asked.append(validation_rows)
    return asked


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 3), st.data())
def test_a_training_that_goes_on_reads_the_rest_of_what_an_undisturbed_one_reads(epochs, validated, data):
    packs = [(epoch, [10 * epoch + i]) for epoch, steps in enumerate(epochs) for i in range(steps)]
    validation = list(range(validated))
    step = data.draw(st.integers(0, len(packs) - 1))
    order, first = reading_order(packs, validation, step)
    assert order == read(packs, validation, 0)
    assert order[first:] == read(packs, validation, step)


def test_a_training_that_had_ended_is_only_validated_again():
    order, first = reading_order([(0, [3]), (1, [3])], [1, 2], 2)
    assert order[first:] == [[1, 2]]
