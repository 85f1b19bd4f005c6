"""Prompts with images in the capture: read with their images, kept apart by them, answered as transformers would."""

from pathlib import Path

import pytest
import torch
from PIL import ImageOps

from harness.capture.plan import make_key, read_rows
from harness.capture.preflight import check_states
from harness.capture.store import Document
from harness.data.chat import load_tokenizer, prompt_token_ids
from harness.data.images import decoded, image_urls, text_of, turn_about
from harness.errors import UserError
from harness.files import write_jsonl
from harness.verifiers.asking import Inputs, load_model
from harness.verifiers.weights import load_weights
from tests.harness.capture.test_engine import NEW_TOKENS, Written
from tests.harness.capture.test_run import settings
from tests.vision import pictured, write_picture_verifier

LAYER_IDS = [1, 2, 3, 4]


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_picture_verifier(tmp_path_factory.mktemp("verifier"))


def _inverted(messages: list[dict]) -> list[dict]:
    """The same question about a picture of the same size."""
    picture = ImageOps.invert(decoded(image_urls(messages)[0]))
    return [turn_about(picture, text_of(messages[0]["content"]))]


def test_another_picture_is_another_prompt_for_the_same_tokens(verifier: Path, tmp_path: Path) -> None:
    messages, urls = pictured(1)[0]
    keys, tokenizer = [], load_tokenizer(verifier)
    for asked in (messages, _inverted(messages)):
        write_jsonl(tmp_path / "train.jsonl", [{"id": "a", "messages": asked}])
        rows = read_rows(tmp_path / "train.jsonl", tokenizer, settings())
        keys.append((rows[0].prompt, make_key(settings(), rows, "sha")))
    (one, key), (other, other_key) = keys
    assert one.token_ids == other.token_ids and list(one.images) == urls
    assert key != other_key


@pytest.fixture(scope="module")
def written(verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Written:
    tokenizer = load_tokenizer(verifier)
    asked = [*pictured(4), ([{"role": "user", "content": "How many are 12?"}], [])]
    batch = [prompt_token_ids(tokenizer, messages) for messages, _ in asked]
    images = [[urls for _, urls in asked]]
    folder = tmp_path_factory.mktemp("engine") / "job"
    return Written(folder, verifier, batches=[batch], images=images, layer_ids=LAYER_IDS, max_num_seqs=3)


@pytest.mark.slow
def test_replies_about_images_are_those_of_transformers(written: Written, verifier: Path) -> None:
    model = load_model(verifier, dtype=torch.float32)
    inputs = Inputs(verifier, model)
    for row, tokens in enumerate(written.batches[0]):
        reply, _ = written.rows[f"0-{row}"]
        asked = inputs(torch.tensor([tokens + reply[:-1]]), written.images[0][row])
        with torch.no_grad():
            logits = model(**asked, use_cache=False).logits[0, len(tokens) - 1 :]
        assert logits.argmax(-1).tolist() == reply and len(reply) == NEW_TOKENS


@pytest.mark.slow
def test_states_at_and_behind_images_are_those_of_transformers(written: Written, verifier: Path) -> None:
    documents = [Document(f"0-{row}", torch.tensor(written.input_ids(f"0-{row}")), written.states[f"0-{row}"],
                          torch.ones(len(written.input_ids(f"0-{row}"))).bool(), 0) for row in range(5)]  # fmt: skip
    images = {f"0-{row}": urls for row, urls in enumerate(written.images[0])}
    weights = load_weights(verifier)
    figures = check_states(documents, verifier, weights, LAYER_IDS, "float32", images)
    assert figures["argmax_differs"] == 0
    with pytest.raises(UserError, match="differ from the verifier's"):
        check_states(documents[:1], verifier, weights, LAYER_IDS, "float32")


@pytest.mark.parametrize("changes", [{"mode": "online"}, {"mode": "hybrid"}, {"engine": "server"}])
def test_images_are_refused_where_a_reply_is_read_again_from_its_tokens(
    verifier: Path, tmp_path: Path, changes: dict[str, str]
) -> None:
    write_jsonl(tmp_path / "train.jsonl", [{"id": "a", "messages": pictured(1)[0][0]}])
    kind = settings().capture.model_copy(update=changes)
    with pytest.raises(UserError, match="holds prompts with images"):
        read_rows(tmp_path / "train.jsonl", load_tokenizer(verifier), settings(capture=kind))
