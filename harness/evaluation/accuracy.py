"""Accuracy of a served variant: lm-eval's evaluator and scoring over this project's tasks, replies from the server.

Called by `measure.py`. `ServedModel` stands where lm-eval's own API client would: that client ends the run at the first
request that fails for good, and scores empty and cut replies as wrong answers without counting them. Here each reply is
asked for with the same fields as in every other check, its prompt is compared token by token with the training data's,
and it is kept. A test shows that both clients get the same scores from one server.

Two forms: `chat` tasks send turns, and the server applies the chat template; `gsm8k_5shot` sends a text to continue.
"""

import json
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from harness.evaluation.client import Answer, Prompt
from harness.evaluation.statistics import proportion
from harness.progress import log
from harness.sections.evaluate import Accuracy

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

TASKS = Path(__file__).parent / "tasks"
FILTERS = {"strict": "strict-match", "flexible": "flexible-extract"}
GAP_WARNING = 0.10
TEXT_TASKS = ("gsm8k_5shot",)

Ask = Callable[[list[tuple[str, Prompt]], Sequence[str]], list[Answer]]


class ServedModel(LM):
    """What lm-eval takes for a model: a running server, asked by `ask`.

    `turns` holds, by problem id, the turns of a row: lm-eval knows the words of the question only, neither the turns
    before it nor its images. None for a task whose prompts are texts.
    """

    def __init__(self, ask: Ask, turns: dict[str, list[dict[str, Any]]] | None) -> None:
        super().__init__()
        self.ask, self.turns = ask, turns
        self.answers: dict[str, Answer] = {}

    @property
    def tokenizer_name(self) -> str:
        """Names lm-eval's request cache, which is off."""
        return ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The messages as JSON: lm-eval carries prompts as text, and the server renders them."""
        return json.dumps(chat_history)

    def generate_until(self, requests: list["Instance"]) -> list[str]:
        """One reply per request; "" for a failed one. All replies stay in `answers` by problem id."""
        stop = requests[0].args[1]["until"]  # the task file's, the same for all its problems
        answers = self.ask([(request.doc["id"], self._prompt(request)) for request in requests], stop)
        self.answers |= {answer.id: answer for answer in answers}
        return [answer.text for answer in answers]

    def _prompt(self, request: "Instance") -> Prompt:
        if self.turns is None:
            return request.args[0]
        *before, _ = json.loads(request.args[0])
        return [*before, *self.turns[request.doc["id"]]]

    def loglikelihood(self, requests: list["Instance"]) -> list[tuple[float, bool]]:
        """Not offered by a chat server."""
        raise NotImplementedError(
            "the tasks of this folder generate; a chat server gives no log-likelihood of a prompt"
        )

    loglikelihood_rolling = loglikelihood


def score(
    task: str, rows: Sequence[dict[str, Any]], ask: Ask, system_prompt: str | None, settings: Accuracy
) -> dict[str, Any]:
    """Strict and flexible score of one task.

    Args:
        task: name of a source and of a file in tasks/.
        rows: all held-out prompt rows; those of this source with an answer are the problems, the first `limit` of them.
        ask: sends (problem id, prompt) with the texts that end a reply, and returns replies in the same order.
        system_prompt: system turn, or None.
        settings: section `accuracy` of the reproduction.

    Returns:
        JSON object: scores with Wilson's intervals; counts of replies that are `thinking_only` (nothing but reasoning),
        `empty`, `cut` at the length limit and `failed`; `invalid` when too many have no answer for the score to mean
        anything; `per_problem`. Or {"not_run": reason}.
    """
    problems = [row for row in rows if row["source"] == task and row.get("answer")][: settings.limit]
    if not problems:
        return {"not_run": f"no held-out prompts of {task} with an answer"}
    turns = None if task in TEXT_TASKS else {row["id"]: row["messages"] for row in problems}
    model, name = ServedModel(ask, turns), f"specproof_{task}"
    tasks = TaskManager(include_path=str(TASKS), include_defaults=False, metadata={"rows": problems}).load([name])
    # Not `simple_evaluate`, which wraps this call: it spends seconds on listing the machine's packages.
    chat = {"apply_chat_template": True, "system_instruction": system_prompt} if turns is not None else {}
    results = evaluate(model, tasks, bootstrap_iters=0, **chat)
    summary = _summary(results["samples"][name], model.answers, settings.error_share_max)
    if summary["scores_disagree"]:
        log(f"{task}: strict {summary['strict']:.2f}, flexible {summary['flexible']:.2f}: answers in another form")
    return summary | {"task_version": results["versions"][name]}


def _summary(samples: list[dict[str, Any]], answers: dict[str, Answer], error_share_max: float) -> dict[str, Any]:
    scores = {
        name: {s["doc"]["id"]: int(s["exact_match"]) for s in samples if s["filter"] == chosen}
        for name, chosen in FILTERS.items()
    }
    n = len(answers)
    failed = sum(answer.error is not None for answer in answers.values())
    silent = [answer for answer in answers.values() if answer.error is None and not answer.text.strip()]
    thinking_only = sum(answer.thought for answer in silent)
    summary: dict[str, Any] = {}
    for name, by_id in scores.items():
        share = proportion(sum(by_id.values()), n)
        summary |= {name: share.value, f"{name}_low": share.low, f"{name}_high": share.high}
    return summary | {
        "n": n,
        "thinking_only": thinking_only,
        "empty": len(silent) - thinking_only,
        "cut": sum(answer.finish_reason == "length" for answer in answers.values()),
        "failed": failed,
        "invalid": (len(silent) + failed) / n > error_share_max,
        "scores_disagree": abs(summary["strict"] - summary["flexible"]) > GAP_WARNING,
        "per_problem": [
            {"id": key, "strict": scores["strict"][key], "flexible": scores["flexible"][key]} for key in answers
        ],
    }


def measure_accuracy(
    rows: Sequence[dict[str, Any]], ask: Ask, system_prompt: str | None, settings: Accuracy
) -> dict[str, Any]:
    """Content of accuracy.json without its provenance."""
    tasks = {task: score(task, rows, ask, system_prompt, settings) for task in settings.tasks}
    return {"tasks": tasks, "versions": {"lm-eval": metadata.version("lm-eval")}}
