"""Questions about pictures of the project's own: coloured shapes and digits in a grid, drawn here, with exact answers.

Called by `sources.py` and by the miniature that reads images. The answer cannot be had without the picture. What it
shows decides the split (`is_heldout`), so that no held-out arrangement was trained on, whatever the seed; places within
a cell, sizes and shades differ from picture to picture.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from harness.data.images import turn_about

HELDOUT_SHARE = 0.25
CELL = 32  # pixels: what the usual processors make one token of
SHADE = 18  # by how much the colour of a shape is off
GRIDS = ((1, 2), (2, 1), (1, 3), (2, 2), (2, 3))  # rows and columns of shapes; pairs of digits take the first two
SHAPES = ("circle", "square", "triangle")
COLOURS = {"red": (220, 40, 40), "green": (40, 170, 60), "blue": (40, 80, 220), "yellow": (235, 205, 40)}
Picture = tuple[str, list[dict[str, Any]], str]


@dataclass(frozen=True)
class Scene:
    """What a picture shows: `things` row by row, each a shape with its colour or a digit."""

    columns: int
    things: tuple[str, ...]


def draw(scene: Scene, shuffle: random.Random) -> Image.Image:
    """The picture, `CELL` pixels a cell; sizes, places and shades from `shuffle`."""
    rows = len(scene.things) // scene.columns
    image = Image.new("RGB", (scene.columns * CELL, rows * CELL), "white")
    pen = ImageDraw.Draw(image)
    for number, thing in enumerate(scene.things):
        row, column = divmod(number, scene.columns)
        x, y = ((place + 0.5) * CELL + shuffle.uniform(-2, 2) for place in (column, row))
        if thing.isdigit():
            pen.text((x, y), thing, "black", ImageFont.load_default(shuffle.uniform(22, 27)), anchor="mm")
        else:
            _shape(pen, thing, x, y, shuffle)
    return image


def _shape(pen: ImageDraw.ImageDraw, thing: str, x: float, y: float, shuffle: random.Random) -> None:
    colour, shape = thing.split()
    fill = tuple(min(255, max(0, part + shuffle.randint(-SHADE, SHADE))) for part in COLOURS[colour])
    half = shuffle.uniform(9, 12)
    box = (x - half, y - half, x + half, y + half)
    if shape == "circle":
        pen.ellipse(box, fill)
    elif shape == "square":
        pen.rectangle(box, fill)
    else:
        pen.polygon(((x, y - half), (x - half, y + half), (x + half, y + half)), fill)


def is_heldout(scene: Scene, question: str) -> bool:
    """Which split a scene with its question belongs to: a fixed hash of both, the same for every seed."""
    digest = hashlib.sha256(f"{question}:{scene.columns}:{scene.things}".encode()).digest()
    return digest[0] < 256 * HELDOUT_SHARE


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _counting(shuffle: random.Random) -> tuple[str, Scene, str]:
    """How many shapes of a kind, or of a colour."""
    rows, columns = shuffle.choice(GRIDS)
    things = [f"{shuffle.choice(list(COLOURS))} {shuffle.choice(SHAPES)}" for _ in range(rows * columns)]
    wanted = shuffle.choice([*SHAPES, *COLOURS])
    number = sum(wanted in thing for thing in things)
    noun = wanted if wanted in SHAPES else f"{wanted} shape"
    seen = _listed([f"a {thing}" for thing in things])
    found = f"{number} {noun}{'' if number == 1 else 's'}"
    question = f"How many {noun}s are in the picture?"
    return question, Scene(columns, tuple(things)), f"I see {seen}.\nThat makes {found}.\n#### {number}"


def _adding(shuffle: random.Random) -> tuple[str, Scene, str]:
    """What two digits add up to."""
    a, b = shuffle.randint(1, 9), shuffle.randint(1, 9)
    _, columns = shuffle.choice(GRIDS[:2])
    question = "What do the digits in the picture add up to?"
    return question, Scene(columns, (str(a), str(b))), f"I see {a} and {b}.\n{a} + {b} = {a + b}\n#### {a + b}"


KINDS = {"counting": _counting, "adding": _adding}


def image_questions(heldout: bool, seed: int) -> Iterator[Picture]:
    """Questions of a split without end as (category, messages, answer), one of each kind in turn."""
    shuffle = random.Random(f"{seed}:{heldout}:pictures")
    while True:
        for kind, make in KINDS.items():
            question, scene, answer = make(shuffle)
            while is_heldout(scene, question) != heldout:
                question, scene, answer = make(shuffle)
            yield kind, [turn_about(draw(scene, shuffle), question)], answer
