"""Reads from a verifier's folder what the lint rules compare a draft with. Called by the lint command."""

from pathlib import Path
from typing import Any

from harness.checkpoint.findings import VerifierFacts
from harness.checkpoint.reading import read_object
from harness.verifiers.weights import load_weights

REPLY = "a reply"


def _ids(value: Any) -> list[int]:
    return [] if value is None else [value] if isinstance(value, int) else list(value)


def _end_of_turn(tokenizer: Any) -> list[int]:
    """The first token that the chat template puts behind a reply; none where there is no template."""
    if not tokenizer.chat_template:
        return []
    turns = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": REPLY}]
    behind = tokenizer.apply_chat_template(turns, tokenize=False).rpartition(REPLY)[2]
    return tokenizer.encode(behind, add_special_tokens=False)[:1]


def stop_tokens(folder: Path) -> dict[int, str]:
    """Text by id of the tokens that end a reply or a turn: configs, tokenizer and chat template asked in turn."""
    # Not AutoTokenizer: its import takes five times as long.
    from transformers import PreTrainedTokenizerFast

    ids = _ids(read_object(folder / "config.json").get("eos_token_id"))
    if (folder / "generation_config.json").exists():
        ids += _ids(read_object(folder / "generation_config.json").get("eos_token_id"))
    if not (folder / "tokenizer.json").exists():
        return dict.fromkeys(ids, "")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    ids += _ids(tokenizer.eos_token_id) + _end_of_turn(tokenizer)
    return {token: str(tokenizer.convert_ids_to_tokens(token)) for token in ids}


def read_facts(folder: Path) -> VerifierFacts:
    """What the rules need of the verifier in `folder`.

    Raises:
        UserError: the folder is no verifier, or is damaged.
    """
    weights = load_weights(folder)
    return VerifierFacts(
        config=weights.config,
        architectures=read_object(folder / "config.json").get("architectures") or [],
        head_VH=weights.head_VH,
        embedding_VH=weights.embedding_VH,
        stop_tokens=stop_tokens(folder),
    )
