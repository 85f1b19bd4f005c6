"""Miniature verifiers: their text, their chat formats, their documents, and a short training."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM

from algorithms.layers import Rotary
from harness.config import load_reproduction
from harness.data.chat import load_tokenizer, prompt_token_ids
from harness.data.instructions import FORMS, instructions
from harness.data.word_problems import word_problems
from harness.recipes import read_recipe, reproduction_names, scales_of
from harness.sections.verifier import MiniatureVerifier
from harness.verifiers.miniature import corpus
from harness.verifiers.miniature.build import SHARES, TOKENIZER_CONVERSATIONS, VOCABULARY, build
from harness.verifiers.miniature.copying import start_with_copying
from harness.verifiers.miniature.documents import Document, batches, documents
from harness.verifiers.miniature.families import FAMILIES, Family, model_config
from harness.verifiers.miniature.tokenizer import train_tokenizer
from harness.verifiers.miniature.vision import QWEN3_VL_MOE
from harness.verifiers.sources import source_sha256
from harness.verifiers.weights import load_weights

TURNS = [
    {"role": "user", "content": "What is 12 + 30?"},
    {"role": "assistant", "content": "12 + 30 = 42"},
    {"role": "user", "content": "And 7 * 8?"},
]
CONVERSATIONS = corpus.conversations(
    3, 400, {"problems": 0.5, "instructions": 0.2, "calculations": 0.2, "repetitions": 0.1}
)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    texts = [turn["content"] for turns in CONVERSATIONS for turn in turns]
    return {name: train_tokenizer(family, texts, 512) for name, family in FAMILIES.items()}


def _shown(tokenizer: Any, turns: list[dict[str, str]], **mode: Any) -> str:
    return tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False, **mode)


def test_no_heldout_prompt_is_in_the_text() -> None:
    said = {turn["content"] for turns in CONVERSATIONS for turn in turns if turn["role"] == "user"}
    heldout = {messages[-1]["content"] for _, messages, _ in word_problems(True, 3)}
    heldout |= {messages[-1]["content"] for _, messages, _ in instructions(True, 3)}
    assert not said & heldout


def test_every_calculation_of_the_text_is_right() -> None:
    lines = [line for turns in CONVERSATIONS for line in turns[-1]["content"].splitlines() if line[0].isdigit()]
    calculations = [line for line in lines if " = " in line and line.replace(" ", "").strip("0123456789+-*/=") == ""]
    assert len(calculations) > 500
    for line in calculations:
        left, right = line.split(" = ")
        assert eval(left) == int(right)


@pytest.mark.parametrize("form", FORMS)
def test_a_reply_follows_from_form_and_topic_alone(form: str) -> None:
    asked = [messages[0]["content"] for kind, messages, _ in instructions(False, 1) if kind == form][:50]
    replies = [corpus.reply_to(form, text) for text in asked]
    assert replies == [corpus.reply_to(form, text) for text in asked]
    assert len(set(replies)) > 10
    assert not any("{" in reply for reply in replies)


def test_a_text_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="no instruction of the form poem"):
        corpus.reply_to("poem", "List five interesting facts about tea for a child.")


@pytest.mark.parametrize("name", FAMILIES)
def test_special_tokens_are_single_ids_and_end_a_reply(name: str, tokenizers: dict[str, Any]) -> None:
    family, tokenizer = FAMILIES[name], tokenizers[name]
    for token in family.special_tokens:
        assert len(tokenizer(token, add_special_tokens=False).input_ids) == 1
    row = documents(family, tokenizer, [[*TURNS, {"role": "assistant", "content": "56"}]], 0)[0]
    assert row.ids[-1] == tokenizer.eos_token_id
    assert row.said[-1] and tokenizer.decode([t for t, said in zip(row.ids, row.said, strict=True) if said]).startswith(
        "12 + 30 = 42"
    )


@pytest.mark.parametrize("name", FAMILIES)
@given(text=st.text(max_size=60))
def test_text_survives_the_tokenizer(name: str, text: str) -> None:
    tokenizer = _small(FAMILIES[name])
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


_kept: dict[str, Any] = {}


def _small(family: Family) -> Any:
    if family.model_type not in _kept:
        _kept[family.model_type] = train_tokenizer(family, ["12 apples and 30 pears"], 300)
    return _kept[family.model_type]


def test_mistral_refuses_turns_that_do_not_alternate(tokenizers: dict[str, Any]) -> None:
    with pytest.raises(TemplateError, match="must alternate"):
        _shown(tokenizers["mistral"], [TURNS[0], TURNS[2]])


def test_harmony_has_one_system_header_with_and_without_a_system_turn(tokenizers: dict[str, Any]) -> None:
    for turns in (TURNS, [{"role": "system", "content": "Be brief."}, *TURNS]):
        assert _shown(tokenizers["gpt_oss"], turns).count("<|start|>system<|message|>") == 1


def test_qwen_puts_an_empty_thought_unless_it_is_to_think(tokenizers: dict[str, Any]) -> None:
    shown, thinking = (_shown(tokenizers["qwen3"], TURNS, enable_thinking=mode) for mode in (False, True))
    assert shown.endswith("<think>\n\n</think>\n\n")
    assert thinking.endswith("assistant\n")


def test_nobody_says_padding_and_every_said_token_comes_once() -> None:
    rows = [Document(list(range(1, 5 + number)), [False, False] + [True] * (2 + number)) for number in range(17)]
    said = 0
    for ids_BS, said_BS in batches(rows, 60, 0):
        assert ids_BS.numel() <= 60
        assert not (said_BS & (ids_BS == 0)).any()
        said += int(said_BS.sum())
    assert said == sum(sum(row.said) for row in rows)


MINIATURES = [name for name in reproduction_names() if "mini" in scales_of(read_recipe(name))]


@pytest.mark.parametrize("name", MINIATURES)
def test_the_mask_token_of_a_recipe_never_stands_in_its_miniatures_text(name: str) -> None:
    reproduction = load_reproduction(name, "mini")
    verifier = reproduction.verifier
    mask_ids = {draft["mask_token_id"] for draft in reproduction.algorithms.values() if "mask_token_id" in draft}
    assert isinstance(verifier, MiniatureVerifier)
    family = FAMILIES.get(verifier.family, QWEN3_VL_MOE)
    conversations = corpus.conversations(verifier.seed, TOKENIZER_CONVERSATIONS, SHARES)
    tokenizer = train_tokenizer(family, (turn["content"] for turns in conversations for turn in turns), VOCABULARY)
    assert len(tokenizer) == VOCABULARY
    assert mask_ids, "no draft of this recipe needs a mask token"
    used = {token for row in documents(family, tokenizer, conversations[:300], 0) for token in row.ids}
    assert not used & mask_ids


def _fresh(name: str) -> Any:
    ids = {token: number for number, token in enumerate(FAMILIES[name].special_tokens)}
    config = model_config(FAMILIES[name], VOCABULARY, ids)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_draft_turns_heads_as_its_familys_own_attention_does(name: str) -> None:
    theirs = _fresh(name).model.rotary_emb
    ours = Rotary(theirs.config.to_dict()["rope_parameters"], theirs.config.head_dim)
    torch.testing.assert_close(ours.frequencies, theirs.inv_freq, rtol=1e-6, atol=0)
    assert ours.length == pytest.approx(theirs.attention_scaling)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_fresh_miniature_can_copy_already(name: str) -> None:
    model = _fresh(name)
    start_with_copying(model, 0)
    ids_BS = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0))[None, :30].repeat(1, 2)
    with torch.no_grad():
        next_BS = model(input_ids=ids_BS).logits.argmax(-1)
    assert (next_BS[0, 30:-1] == ids_BS[0, 31:]).float().mean() > 0.6


@pytest.mark.parametrize("family", FAMILIES)
def test_a_short_training_leaves_a_folder_that_drafts_can_use(family: str, tmp_path: Path) -> None:
    verifier = MiniatureVerifier(
        source="miniature", id=f"specproof/{family}", family=family, training_tokens=10_000, tokens_per_step=2048
    )
    build(verifier, tmp_path)
    build(verifier, tmp_path / "again")
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "again" / "model.safetensors").read_bytes()
    weights = load_weights(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == family
    assert weights.embedding_VH.shape == weights.head_VH.shape == (1024, 128)
    assert prompt_token_ids(load_tokenizer(tmp_path), TURNS)


@pytest.mark.slow
def test_a_training_that_is_killed_starts_over_and_leaves_nothing_behind(tmp_path: Path) -> None:
    source = {"source": "miniature", "id": "specproof/llama", "family": "llama", "training_tokens": 20_000}
    settings = json.dumps({"verifier": source, "checks": [], "scale": "mini"})
    command = [sys.executable, "-m", "harness.verifiers", "--settings", settings, "--out", f"{tmp_path}/models/mini"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as killed:
        assert killed.stderr is not None
        assert any("million parameters" in line for line in iter(killed.stderr.readline, ""))
        killed.kill()
    left = [path.name for path in (tmp_path / "models").iterdir()]
    assert len(left) == 1 and left[0].endswith(".partial")
    subprocess.run(command, check=True, timeout=120)
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["mini"]
    assert (tmp_path / "models/mini/verifier.json").is_file()


def test_another_seed_is_another_source() -> None:
    one, two = (
        MiniatureVerifier(source="miniature", id="specproof/llama", family="llama", seed=seed) for seed in (1, 2)
    )
    assert source_sha256(one) != source_sha256(two)
