"""Images in turns: to data URIs and back, and the tokens that they take of a prompt."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from harness.data.images import ImageReader, decoded, encoded, image_urls, narrowed, text_of, turn_about

IMAGE_TOKEN = 9
# A token for 4 patches of 16 pixels a side, as processors of the Qwen family count.
PROCESSOR = SimpleNamespace(merge_size=2, get_number_of_image_patches=lambda height, width: height * width // 256)


@pytest.fixture
def reader() -> ImageReader:
    return ImageReader(SimpleNamespace(image_processor=PROCESSOR), IMAGE_TOKEN)


def _picture(width: int = 32, height: int = 32) -> Image.Image:
    return Image.effect_noise((width, height), 60).convert("RGB")


def test_a_picture_comes_back_as_it_was():
    image = _picture(64, 32)
    assert decoded(encoded(image)).tobytes() == image.tobytes()


@pytest.mark.parametrize("url", ["https://example.org/a.png", "file:///etc/passwd", ""])
def test_nothing_is_fetched_from_elsewhere(url: str):
    with pytest.raises(ValueError, match="only data: addresses are read"):
        decoded(url)


def test_a_turn_holds_its_image_and_its_words():
    turns = [{"role": "system", "content": "Be brief."}, turn_about(_picture(), "What is it?")]
    assert len(image_urls(turns)) == 1 and text_of(turns[1]["content"]) == "What is it?"
    assert image_urls(turns[:1]) == [] and text_of("plain") == "plain"


def test_each_image_takes_its_own_number_of_tokens(reader: ImageReader):
    urls = [encoded(_picture(64, 32)), encoded(_picture(96, 64))]
    assert reader.widened([1, IMAGE_TOKEN, 2, IMAGE_TOKEN], urls) == [1, *[IMAGE_TOKEN] * 2, 2, *[IMAGE_TOKEN] * 6]


def test_a_template_that_leaves_out_an_image_is_refused(reader: ImageReader):
    with pytest.raises(ValueError, match="1 of 2 images are in the prompt"):
        reader.widened([1, IMAGE_TOKEN], [encoded(_picture())] * 2)


@given(st.lists(st.integers(1, 3), max_size=3), st.lists(st.integers(0, 8), min_size=4, max_size=4))
def test_narrowing_undoes_widening(cells: list[int], others: list[int]):
    reader = ImageReader(SimpleNamespace(image_processor=PROCESSOR), IMAGE_TOKEN)
    prompt = [token for i, _ in enumerate(cells) for token in (others[i], IMAGE_TOKEN)] + others[len(cells) :]
    urls = [encoded(Image.new("RGB", (32 * count, 32))) for count in cells]
    assert narrowed(reader.widened(prompt, urls), IMAGE_TOKEN) == prompt
