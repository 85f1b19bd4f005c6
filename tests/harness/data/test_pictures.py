"""Pictures show what their answers say, splits are apart, and the same seed draws the same picture."""

import random
import re
from itertools import islice

import pytest
from PIL import Image

from harness.data.images import decoded, image_urls, text_of
from harness.data.pictures import CELL, COLOURS, Scene, draw, image_questions, is_heldout


def _rows(heldout: bool, seed: int, count: int = 120) -> list[tuple[str, str, str, Image.Image]]:
    """(kind, question, answer, picture)."""
    asked = islice(image_questions(heldout, seed), count)
    return [
        (kind, text_of(messages[0]["content"]), answer, decoded(image_urls(messages)[0]))
        for kind, messages, answer in asked
    ]


def _colours_seen(image: Image.Image) -> list[str]:
    """Colour of every coloured cell, row by row, by its middle."""
    found = []
    for y in range(CELL // 2, image.height, CELL):
        for x in range(CELL // 2, image.width, CELL):
            pixel = image.getpixel((x, y))
            distance, name = min((sum(abs(a - b) for a, b in zip(pixel, rgb, strict=True)), name)
                                 for name, rgb in COLOURS.items())  # fmt: skip
            found += [name] if distance < 80 else []
    return found


def test_a_count_is_what_the_picture_shows():
    for kind, question, answer, image in _rows(False, 1):
        if kind != "counting":
            continue
        told = re.findall(rf"a ({'|'.join(COLOURS)}) (\w+)", answer.splitlines()[0])
        assert [colour for colour, _ in told] == _colours_seen(image)
        (wanted,) = re.findall(r"How many (\w+?)s? (?:shapes )?are", question)
        assert int(answer.rpartition("#### ")[2]) == sum(wanted in pair for pair in told)


def test_a_sum_is_right_and_its_digits_are_in_the_picture():
    for kind, _, answer, image in _rows(False, 1):
        if kind == "adding":
            left, right = answer.splitlines()[1].split(" = ")
            assert eval(left) == int(right) == int(answer.rpartition("#### ")[2])
            assert not _colours_seen(image) and len(image.getcolors(4096)) > 2


@pytest.mark.parametrize("seed", [1, 2])
def test_no_arrangement_is_in_both_splits(seed: int):
    answers = [{(question, answer, image.size) for _, question, answer, image in _rows(heldout, seed, 300)}
               for heldout in (False, True)]  # fmt: skip
    scene = Scene(2, ("red circle", "blue square"))
    assert is_heldout(scene, "How many?") == is_heldout(scene, "How many?")
    # Equal words and sizes may stand for two arrangements, but few of them do.
    assert len(answers[0] & answers[1]) < len(answers[1]) / 2


def test_the_same_seed_draws_the_same_pictures_and_another_others():
    one, again, other = ([image.tobytes() for *_, image in _rows(False, seed, 20)] for seed in (1, 1, 2))
    assert one == again and len(set(one) & set(other)) == 0


def test_the_question_alone_does_not_give_the_answer():
    """The commonest answer to a question, given blindly, is right less than half of the time."""
    by_question: dict[str, list[str]] = {}
    for _, question, answer, _ in _rows(True, 3, 400):
        by_question.setdefault(question, []).append(answer.rpartition("#### ")[2])
    blind = sum(max(map(answers.count, answers)) for answers in by_question.values())
    assert blind < 0.5 * sum(map(len, by_question.values()))


def test_a_row_of_things_is_a_row_of_cells():
    image = draw(Scene(2, ("red circle", "7")), random.Random(0))
    assert image.size == (2 * CELL, CELL) and _colours_seen(image) == ["red"]
