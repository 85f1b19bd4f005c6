"""Documents of the lm-eval tasks in this folder: held-out prompt rows that have a gold answer. Called by lm-eval."""

from typing import Any

from datasets import Dataset

from harness.data.images import text_of


def load(rows: list[dict[str, Any]], **_: Any) -> dict[str, Dataset]:
    """The split `test` from prompt rows (`id`, `messages`, `answer`), which the harness passes in as task metadata."""
    documents = [
        {"id": row["id"], "question": text_of(row["messages"][-1]["content"]), "answer": row["answer"]} for row in rows
    ]
    return {"test": Dataset.from_list(documents)}
