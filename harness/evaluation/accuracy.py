"""Accuracy of a served variant: lm-eval's scoring over this project's tasks, replies from the running server.

Called by `measure.py`. lm-eval's own client hides replies that are empty, cut or failed, and scores them as wrong
answers; `ServedModel` takes its place, asks with the same fields as every other check, and keeps each reply.
Chat templates are applied by the server, as for any user.
"""

import json
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from harness.evaluation.client import Answer
from harness.evaluation.statistics import proportion
from harness.progress import log
from harness.sections.evaluate import Accuracy

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

TASKS = Path(__file__).parent / "tasks"
FILTERS = {"strict": "strict-match", "flexible": "flexible-extract"}
GAP_WARNING = 0.10

Ask = Callable[[list[tuple[str, list[dict[str, str]]]]], list[Answer]]


class ServedModel(LM):
    """What lm-eval takes for a model: a running server, asked by `ask`.

    `earlier` holds, by problem id, the turns that a row has before its question: lm-eval knows the question only.
    """

    def __init__(self, ask: Ask, earlier: dict[str, list[dict[str, str]]]) -> None:
        super().__init__()
        self.ask, self.earlier = ask, earlier
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
        answers = self.ask([(request.doc["id"], self._messages(request)) for request in requests])
        self.answers |= {answer.id: answer for answer in answers}
        return [answer.text for answer in answers]

    def _messages(self, request: "Instance") -> list[dict[str, str]]:
        *before, question = json.loads(request.args[0])
        return [*before, *self.earlier[request.doc["id"]], question]

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
        task: `word_problems` or `gsm8k`.
        rows: all held-out prompt rows; those of this source with an answer are the problems, the first `limit` of them.
        ask: sends (problem id, messages) and returns replies in the same order.
        system_prompt: system turn, or None.
        settings: section `accuracy` of the reproduction.

    Returns:
        JSON object: scores with Wilson's intervals, counts of empty, cut and failed replies, `invalid` when too many
        replies are empty or failed for the score to mean anything, `per_problem`. Or {"not_run": reason}.
    """
    problems = [row for row in rows if row["source"] == task and row.get("answer")][: settings.limit]
    if not problems:
        return {"not_run": f"no held-out prompts of {task} with an answer"}
    earlier = {row["id"]: row["messages"][:-1] for row in problems}
    model, name = ServedModel(ask, earlier), f"specproof_{task}"
    tasks = TaskManager(include_path=str(TASKS), include_defaults=False, metadata={"rows": problems}).load([name])
    # Not `simple_evaluate`, which wraps this call: it spends seconds on listing the machine's packages.
    results = evaluate(model, tasks, apply_chat_template=True, system_instruction=system_prompt, bootstrap_iters=0)
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
    empty = sum(answer.error is None and not answer.text.strip() for answer in answers.values())
    summary: dict[str, Any] = {}
    for name, by_id in scores.items():
        share = proportion(sum(by_id.values()), n)
        summary |= {name: share.value, f"{name}_low": share.low, f"{name}_high": share.high}
    return summary | {
        "n": n,
        "empty": empty,
        "cut": sum(answer.finish_reason == "length" for answer in answers.values()),
        "failed": failed,
        "invalid": (empty + failed) / n > error_share_max,
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
