"""Reads from a verifier's folder what the lint rules compare a draft with. Called by the lint command."""

from pathlib import Path
from typing import Any

from harness.checkpoint.findings import VerifierFacts
from harness.jsonfile import read_object
from harness.verifiers.weights import load_weights, verifier_config

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


def tokenizer_of(folder: Path) -> dict[str, Any] | None:
    """Tokens by text, added tokens and chat template of a folder; None where it has no tokenizer.json."""
    if not (folder / "tokenizer.json").exists():
        return None
    content = read_object(folder / "tokenizer.json")
    added = {str(token.get("content")): token.get("id") for token in content.get("added_tokens") or []}
    template = folder / "chat_template.jinja"
    settings = folder / "tokenizer_config.json"
    inner = read_object(settings).get("chat_template") if settings.exists() else None
    return {
        "tokens": (content.get("model") or {}).get("vocab"),
        "added tokens": added,
        "chat template": template.read_text(encoding="utf-8") if template.exists() else inner,
    }


def read_facts(folder: Path, weights_too: bool = True) -> VerifierFacts:
    """What the rules need of the verifier in `folder`; without weights in it, what its config says.

    Raises:
        UserError: the folder is no verifier, or is damaged.
    """
    config, weights = verifier_config(folder), None
    if weights_too and any(folder.glob("*.safetensors")):
        weights = load_weights(folder)
    return VerifierFacts(
        config=config,
        architectures=read_object(folder / "config.json").get("architectures") or [],
        head_VH=weights.head_VH if weights else None,
        embedding_VH=weights.embedding_VH if weights else None,
        stop_tokens=stop_tokens(folder),
        tokenizer=tokenizer_of(folder),
    )
