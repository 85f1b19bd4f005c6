"""Greedy replies to every held-out prompt: acceptance, output match and parity are computed from them.

Called by `measure.py`, source by source. A reply's prompt must have reached the model exactly as the training data were
tokenised: a chat template or system turn that differs costs acceptance without any error.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.data.chat import load_tokenizer, prompt_token_ids, with_system_turn
from harness.data.images import image_urls
from harness.errors import UserError
from harness.evaluation.client import Answer, Chat
from harness.evaluation.match import first_difference
from harness.evaluation.turns import longest_conversation


def by_source(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Prompt rows grouped by source, in the order of the file."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["source"], []).append(row)
    return groups


class Prompts:
    """Held-out rows of one file, with the token ids that each must have on the server.

    Args:
        rows: prompt rows as `harness.data` writes them; what follows on a reply comes by `add`.
        verifier: folder with the tokenizer and chat template.
        system_prompt: system turn to put in front, or None.
    """

    def __init__(self, rows: Sequence[dict[str, Any]], verifier: Path, system_prompt: str | None) -> None:
        tokenizer = load_tokenizer(verifier)
        self.tokenizer, self.rows, self.system_prompt = tokenizer, list(rows), system_prompt
        self.messages: dict[str, list[dict[str, Any]]] = {}
        self.token_ids: dict[str, list[int]] = {}
        self.add(rows)

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Prompts to ask beside those of the file: further turns, with the replies before them."""
        for row in rows:
            self.messages[row["id"]] = with_system_turn(row["messages"], self.system_prompt)
            self.token_ids[row["id"]] = prompt_token_ids(self.tokenizer, self.messages[row["id"]])

    def images(self, prompt_id: str) -> dict[str, list[str]]:
        """What a reply to this prompt keeps of it beside its tokens: `images`, as data URIs, where it has some."""
        urls = image_urls(self.messages[prompt_id])
        return {"images": urls} if urls else {}

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """The text of a conversation up to where the reply starts, special tokens written out."""
        return self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)

    def longest_tokens(self, reply_tokens: int) -> int:
        """Length of the longest prompt, whose earlier replies have `reply_tokens` tokens each."""
        return max(self._tokens(row, reply_tokens) for row in self.rows)

    def _tokens(self, row: dict[str, Any], reply_tokens: int) -> int:
        turns = row.get("turns") or []
        if not turns:
            return len(self.token_ids[row["id"]])
        messages = with_system_turn(longest_conversation(row), self.system_prompt)
        return len(prompt_token_ids(self.tokenizer, messages)) + reply_tokens * len(turns)

    def first(self, source: str, count: int) -> tuple[list[tuple[str, list[dict[str, Any]]]], ...]:
        """(id, messages) of the first `count` prompts of `source`, and of the others."""
        prompts = [(row["id"], self.messages[row["id"]]) for row in self.rows if row["source"] == source]
        return prompts[:count], prompts[count:]

    def texts(self, answer: Answer) -> dict[str, list[str]]:
        """`token_texts` of a reply where the server gave none: its route for rendered prompts gives ids alone."""
        return {} if any(answer.token_texts) else {"token_texts": [self.tokenizer.decode(t) for t in answer.token_ids]}

    def check(self, answers: Sequence[Answer], texts: Mapping[str, str] | None = None) -> None:
        """Refuse replies to prompts that the server tokenised otherwise than the training data, or cut.

        Args:
            answers: replies to these rows.
            texts: prompts by id that were sent as they are, without a chat template.

        Raises:
            UserError: names the first such prompt and where it parts.
        """
        for answer in answers:
            text = (texts or {}).get(answer.id)
            meant = self.token_ids[answer.id] if text is None else self.tokenizer(text)["input_ids"]
            part = first_difference(answer.prompt_token_ids, meant)
            if answer.error is None and part is not None:
                lengths = f"{len(answer.prompt_token_ids)} tokens, not {len(meant)}"
                raise UserError(
                    f"{answer.id}: the server's prompt has {lengths} as in training; they part at token {part}. "
                    "Fix: serve the verifier folder with its own chat template and tokenizer"
                )

    def ask(self, chat: Chat, rows: Sequence[dict[str, Any]], concurrency: int, title: str) -> list[Answer]:
        """Replies to `rows`, their prompts checked."""
        answers = chat.ask_all([(row["id"], self.messages[row["id"]]) for row in rows], concurrency, title)
        self.check(answers)
        return answers


def as_row(answer: Answer, source: str) -> dict[str, Any]:
    """One line of replies.jsonl."""
    return {
        "id": answer.id,
        "source": source,
        "prompt_token_ids": answer.prompt_token_ids,
        "token_ids": answer.token_ids,
        "token_texts": answer.token_texts,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "top_logprobs": answer.top_logprobs,
        "latency_s": answer.latency_s,
        "spec": answer.spec,
    }
