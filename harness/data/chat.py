"""Messages to token ids exactly as vLLM's chat endpoint makes them, and which of a document's tokens carry loss.

Used by the data step (to refuse what a template rejects), capture, training and evaluation. Replies are never rendered
again: a document is the prompt's ids followed by the ids that the verifier emitted, thinking and end-of-turn included.
"""

from pathlib import Path
from typing import Any

import jinja2

from harness.data.images import image_reader, image_urls
from harness.errors import UserError

ROLES = ("system", "user", "assistant", "tool")
Message = dict[str, Any]


class PromptRejected(ValueError):
    """A conversation that cannot be rendered; the message is a short reason to count rows by."""


def load_tokenizer(verifier: Path) -> Any:
    """The verifier's tokenizer.

    Raises:
        UserError: the folder holds no tokenizer or no chat template.
    """
    from transformers import AutoTokenizer

    repair = "Fix: make the folder with `python -m harness.verifiers`"
    if not (verifier / "tokenizer_config.json").is_file():
        raise UserError(f"{verifier}: holds no tokenizer_config.json. {repair}")
    tokenizer = AutoTokenizer.from_pretrained(verifier)
    if tokenizer.chat_template is None:
        raise UserError(f"{verifier}: holds no chat template. {repair}, from an instruction-tuned model")
    return tokenizer


def with_system_turn(messages: list[Message], system_prompt: str | None) -> list[Message]:
    """`messages`, led by `system_prompt`; None leaves a default system turn to the template, as the server does."""
    if system_prompt is None or (messages and messages[0]["role"] == "system"):
        return messages
    return [{"role": "system", "content": system_prompt}, *messages]


def prompt_token_ids(tokenizer: Any, messages: list[Message], system_prompt: str | None = None) -> list[int]:
    """Token ids of the conversation up to where the assistant's next reply starts, every token of an image counted.

    The template writes every special token itself, so the tokenizer adds none: no double start token.

    Raises:
        PromptRejected: a role has no meaning here, or the template refuses the conversation.
    """
    turns = with_system_turn(messages, system_prompt)
    strange = sorted({turn["role"] for turn in turns} - set(ROLES))
    if strange:
        raise PromptRejected(f"unknown role {', '.join(map(repr, strange))}")
    try:
        ids = list(tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False))
    except (jinja2.TemplateError, TypeError) as error:  # strict templates raise either
        raise PromptRejected(f"template: {error}") from error
    urls = image_urls(turns)
    return _with_images(tokenizer, ids, urls) if urls else ids


def _with_images(tokenizer: Any, token_ids: list[int], urls: list[str]) -> list[int]:
    reader = image_reader(tokenizer.name_or_path)
    if reader is None:
        raise PromptRejected("an image, which this verifier does not read")
    try:
        return reader.widened(token_ids, urls)
    except ValueError as error:
        raise PromptRejected(str(error)) from error


def loss_mask(prompt_len: int, total_len: int) -> list[bool]:
    """True on the reply's tokens, end-of-turn included; `total_len` counts prompt and reply.

    The mask marks tokens, not predictions: mask[i] says that token i was written by the assistant.
    """
    if not 0 <= prompt_len <= total_len:
        raise ValueError(f"prompt_len {prompt_len} must be between 0 and total_len {total_len}")
    return [False] * prompt_len + [True] * (total_len - prompt_len)
