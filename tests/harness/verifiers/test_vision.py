"""The miniature that reads images: its chat format, its documents, and a short training."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

import algorithms
from algorithms.layers import Rotary, rope_of
from harness.checkpoint import read_checkpoint
from harness.checkpoint.findings import Subject
from harness.checkpoint.lint import lint
from harness.checkpoint.verifier_facts import read_facts
from harness.config import load_reproduction
from harness.data.chat import load_tokenizer, prompt_token_ids
from harness.data.images import ImageReader
from harness.data.pictures import image_questions
from harness.sections.verifier import MiniatureVerifier
from harness.verifiers.miniature import vision
from harness.verifiers.miniature.families import EXPERTS, HIDDEN, LAYERS
from harness.verifiers.sources import source_sha256
from harness.verifiers.weights import load_weights
from tests import toy
from tests.harness.checkpoint.drafts import faults
from tests.vision import pictured

VERIFIER = MiniatureVerifier(
    source="miniature", id="specproof/vl", family="qwen3_vl_moe", training_tokens=10_000, tokens_per_step=2048
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("miniature")
    vision.build(VERIFIER, made)
    return made


def test_a_short_training_leaves_a_folder_that_engine_and_drafts_can_use(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "qwen3_vl_moe" and config["text_config"]["norm_topk_prob"] is True
    experts = {
        name: tensor.shape for name, tensor in load_file(folder / "model.safetensors").items() if "experts" in name
    }
    inner = vision.EXPERT_INTERMEDIATE
    assert len(experts) == 2 * LAYERS
    for name, shape in experts.items():
        wanted = (EXPERTS, HIDDEN, 2 * inner) if "gate_up" in name else (EXPERTS, inner, HIDDEN)
        assert shape == wanted, f"{name}: the published layout"
    assert config["text_config"]["rope_parameters"]["mrope_section"] == [6, 5, 5]


def test_what_was_trained_is_what_is_read_back(folder: Path) -> None:
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    kept = load_file(folder / "model.safetensors")
    ours = model.model.language_model.layers[0].mlp.experts.gate_up_proj
    assert torch.equal(ours, kept["model.language_model.layers.0.mlp.experts.gate_up_proj"].float().mT)


def test_the_saved_tokenizer_renders_images_and_text(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    shown = tokenizer.apply_chat_template(pictured(1)[0][0], add_generation_prompt=True, tokenize=False)
    assert shown.startswith("<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>How many")
    assert shown.endswith("<|im_end|>\n<|im_start|>assistant\n")
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    plain = [{"role": "user", "content": "Hi"}]
    assert prompt_token_ids(tokenizer, parts) == prompt_token_ids(tokenizer, plain)


def test_only_the_answer_of_a_picture_is_said(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    config = json.loads((folder / "config.json").read_text())
    reader = ImageReader(vision.processor_of(tokenizer), config["image_token_id"])
    _, messages, answer = next(image_questions(False, 1))
    row: Any = vision.document_of(tokenizer, reader, [*messages, {"role": "assistant", "content": answer}])
    said = [token for token, is_said in zip(row.ids, row.said, strict=True) if is_said]
    assert tokenizer.decode(said) == f"{answer}<|im_end|>" and len(row.images) == 1
    assert row.ids[: -len(said)] == prompt_token_ids(tokenizer, messages)


def test_the_mask_token_of_the_recipe_is_the_one_of_videos(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    mini = load_reproduction("qwen3_vl_235b_a22b", "mini")
    masks = {draft["mask_token_id"] for draft in mini.algorithms.values() if "mask_token_id" in draft}
    whole = vision.config_of({token: i for i, token in enumerate(vision.QWEN3_VL_MOE.special_tokens)})
    assert whole.video_token_id == len(vision.QWEN3_VL_MOE.special_tokens) - 1, "the last of all tokens"
    assert masks == {vision.VOCABULARY - 1} and config["text_config"]["vocab_size"] == vision.VOCABULARY


def test_a_draft_turns_heads_as_the_language_model_does_where_there_is_no_image() -> None:
    ids = {token: i for i, token in enumerate(vision.QWEN3_VL_MOE.special_tokens)}
    config = vision.config_of(ids)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    theirs = model.model.language_model.rotary_emb
    ours = Rotary(rope_of(config.text_config.to_dict()), config.text_config.head_dim)
    torch.testing.assert_close(ours.frequencies, theirs.inv_freq, rtol=1e-6, atol=0)
    position_S = torch.arange(9)
    cosine, _ = theirs(torch.zeros(1, 9, HIDDEN), position_S.expand(3, 1, -1))
    torch.testing.assert_close(ours.angles(position_S)[0][:, 0], cosine[0, :, : cosine.shape[-1] // 2])


@pytest.mark.parametrize(("algorithm", "knobs"), [("eagle3", {}), ("dflash", {"mask_token_id": 1023, "block_size": 4})])
def test_a_draft_beside_it_has_no_fault_and_a_note_about_its_positions(
    folder: Path, tmp_path: Path, algorithm: str, knobs: dict[str, int]
) -> None:
    draft = toy.random_draft(load_weights(folder), aux_layers=(1, 2, 3), algorithm=algorithm, **knobs)
    toy.write_draft(tmp_path / "draft", draft, "models/vl", algorithm)
    content, tensors = read_checkpoint(tmp_path / "draft")
    files = sorted(path.name for path in (tmp_path / "draft").iterdir())
    findings = lint(Subject(content, tensors, algorithms.load(algorithm), files, read_facts(folder)))
    verdicts = {finding.rule: finding.verdict for finding in findings}
    assert faults(findings) - {"verifier-architecture", "stop-tokens"} == set()
    assert verdicts["rope-of-verifier"] == "note"


def test_other_code_or_another_seed_is_another_source() -> None:
    assert source_sha256(VERIFIER) != source_sha256(VERIFIER.model_copy(update={"seed": 2}))
