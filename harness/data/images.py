"""Images in conversations: turns as the chat endpoint takes them, and what an image becomes for its verifier.

A turn about images has a list for its content, as OpenAI's chat format has it: parts {"type": "image_url", "image_url":
{"url": "data:image/png;base64,..."}} and {"type": "text", "text": ...}. Rows of prompts carry their images that way, so
they are sent to a server as they are. `ImageReader` is the verifier's own processor, made for rows with images only.
Used by `chat`, capture and evaluation.
"""

import base64
import io
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

PREFIX = "data:image/png;base64,"
Message = dict[str, Any]


def encoded(image: "Image") -> str:
    """The image as a data URI: a PNG, so that no colour is lost."""
    file = io.BytesIO()
    image.save(file, format="PNG")
    return PREFIX + base64.b64encode(file.getvalue()).decode()


def decoded(url: str) -> "Image":
    """The image of a data URI, in RGB.

    Raises:
        ValueError: the address leads elsewhere; nothing is fetched.
    """
    from PIL import Image

    if not url.startswith("data:image/"):
        raise ValueError(f"image_url {url[:40]!r}: only data: addresses are read. Fix: put the image into the row")
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")


def turn_about(image: "Image", text: str) -> Message:
    """A user turn: the image, then a text."""
    picture = {"type": "image_url", "image_url": {"url": encoded(image)}}
    return {"role": "user", "content": [picture, {"type": "text", "text": text}]}


def image_urls(messages: Sequence[Message]) -> list[str]:
    """Addresses of all images of a conversation, in their order."""
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


def text_of(content: str | list[dict[str, Any]]) -> str:
    """What a turn says in words."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


class ImageReader:
    """What a verifier makes of images: as many tokens of a kind as its processor says, and pixels.

    Args:
        processor: the verifier's, from transformers.
        token_id: of the token that stands in a prompt for each part of an image.
    """

    def __init__(self, processor: Any, token_id: int) -> None:
        self.processor, self.token_id = processor.image_processor, token_id

    def tokens(self, image: "Image") -> int:
        """Tokens that the image takes."""
        patches = self.processor.get_number_of_image_patches(image.height, image.width)
        return patches // self.processor.merge_size**2

    def widened(self, token_ids: Sequence[int], urls: Sequence[str]) -> list[int]:
        """The prompt as the verifier reads it: the template's one token for an image, as often as the image takes.

        Raises:
            ValueError: the template wrote another number of images.
        """
        counts = [self.tokens(decoded(url)) for url in urls]
        if token_ids.count(self.token_id) != len(counts):
            raise ValueError(f"template: {token_ids.count(self.token_id)} of {len(counts)} images are in the prompt")
        left = iter(counts)
        wide: list[int] = []
        for token in token_ids:
            wide += [token] * next(left) if token == self.token_id else [token]
        return wide

    def inputs(self, token_ids: "Tensor", urls: Sequence[str]) -> dict[str, "Tensor"]:
        """What a model in transformers takes beside the token ids [1, S] of a prompt with these images."""
        if not urls:
            return {}
        pixels = self.processor(images=[decoded(url) for url in urls], return_tensors="pt")
        return {**pixels, "mm_token_type_ids": (token_ids == self.token_id).int()}


def narrowed(token_ids: Sequence[int], token_id: int) -> list[int]:
    """The inverse of `ImageReader.widened`: the engine widens prompts itself. Other tokens stand between two images."""
    return [token for i, token in enumerate(token_ids) if token != token_id or i == 0 or token_ids[i - 1] != token_id]


@lru_cache(maxsize=4)
def image_reader(verifier: str | Path) -> ImageReader | None:
    """The reader of a verifier folder; None for a verifier that reads text alone."""
    from transformers import AutoConfig, AutoProcessor

    config = AutoConfig.from_pretrained(verifier)
    token = getattr(config, "image_token_id", None)
    return None if token is None else ImageReader(AutoProcessor.from_pretrained(verifier), token)
