"""A verifier that reads images, asked through transformers: as the engine would be, image or not."""

from pathlib import Path

import pytest
import torch
from PIL import ImageOps

from harness.data.chat import PromptRejected, load_tokenizer, prompt_token_ids
from harness.data.images import decoded, encoded
from harness.evaluation.loop import States
from harness.evaluation.lossless import Reference
from harness.verifiers.asking import Inputs, LayerStates, load_model
from harness.verifiers.weights import load_weights
from tests import toy
from tests.vision import pictured, write_picture_verifier

TEXT = [{"role": "user", "content": "How many are 12?"}]


@pytest.fixture(scope="module")
def verifier(tmp_path_factory) -> Path:
    return write_picture_verifier(tmp_path_factory.mktemp("verifier"))


def test_an_image_takes_one_token_a_cell_of_the_prompt(verifier: Path):
    tokenizer = load_tokenizer(verifier)
    image_token = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    for messages, urls in pictured(4):
        width, height = decoded(urls[0]).size
        assert prompt_token_ids(tokenizer, messages).count(image_token) == width * height // 32**2
    assert image_token not in prompt_token_ids(tokenizer, TEXT)


def test_a_verifier_of_text_alone_refuses_images(tmp_path: Path):
    tokenizer = load_tokenizer(toy.write_verifier(tmp_path))
    tokenizer.chat_template = "{% for message in messages %}x{% endfor %}"
    with pytest.raises(PromptRejected, match="an image, which this verifier does not read"):
        prompt_token_ids(tokenizer, pictured(1)[0][0])


def test_states_depend_on_the_picture_and_hold_what_lies_between_layers(verifier: Path):
    (messages, urls), tokenizer = pictured(1)[0], load_tokenizer(verifier)
    token_ids = prompt_token_ids(tokenizer, messages)
    model = load_model(verifier, dtype=torch.float32)
    states, inputs = LayerStates(model), Inputs(verifier, model)
    with torch.no_grad():
        output = model(**inputs(torch.tensor([token_ids]), urls), output_hidden_states=True, use_cache=False)
    image_S = torch.tensor(token_ids) == tokenizer.convert_tokens_to_ids("<|image_pad|>")
    theirs = output.hidden_states[1][0]
    # The tower's features are added behind the first layer, at the image's tokens alone.
    assert torch.equal(states[1][~image_S], theirs[~image_S])
    assert (states[1][image_S] - theirs[image_S]).norm(dim=-1).min() > 0.1
    seen, other = States(verifier, [2, 4], torch.float32), encoded(ImageOps.invert(decoded(urls[0])))
    assert (seen(token_ids, urls) - seen(token_ids, [other])).norm() > 1e-2


def test_a_prompt_without_an_image_is_read_the_same_behind_one_with(verifier: Path):
    """transformers keeps by how much the last image shifted positions."""
    tokenizer, reference = load_tokenizer(verifier), Reference(verifier)
    text, (messages, urls) = prompt_token_ids(tokenizer, TEXT), pictured(1)[0]
    replies = [[5, 6, 7], [8, 9, 10]]
    before = reference.logits(text, replies)
    reference.logits(prompt_token_ids(tokenizer, messages), replies, urls)
    torch.testing.assert_close(reference.logits(text, replies), before)


def test_a_reply_about_an_image_is_read_in_parts_as_in_one(verifier: Path):
    """Positions go on behind the image where the cache does."""
    tokenizer, (messages, urls) = load_tokenizer(verifier), pictured(1)[0]
    prompt, reply = prompt_token_ids(tokenizer, messages), [5, 6, 7, 8]
    model = load_model(verifier, dtype=torch.float32)
    inputs = Inputs(verifier, model)(torch.tensor([prompt + reply]), urls)
    with torch.no_grad():
        whole = model(**inputs, use_cache=False).logits[0, len(prompt) - 1 : -1]
    parts = Reference(verifier).logits(prompt, [reply], urls)[0]
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-4)


def test_a_draft_takes_over_the_language_models_tables(verifier: Path):
    weights = load_weights(verifier)
    assert weights.embedding_VH.shape == weights.head_VH.shape == (1024, 128)
    assert weights.config["rope_parameters"]["mrope_section"] == [6, 5, 5]
