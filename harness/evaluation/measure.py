"""One variant against one server: replies, acceptance, samples, accuracy, latency, one after another in one process.

Called by `python -m harness.evaluation measure`. lm-eval and GuideLLM take 25 s to import; that happens here while the
server starts and replies. Every file appears whole as soon as its check is done.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import provenance
from harness.evaluation.acceptance import Counters, benchmark, by_category, identity_checks, settled_counters
from harness.evaluation.client import Answer, Chat, Prompt, check_server
from harness.evaluation.replies import Prompts, as_row, by_source
from harness.evaluation.results import read_held_out
from harness.evaluation.sampling import collect
from harness.evaluation.settings import MeasureSettings
from harness.evaluation.turns import next_turns, turn_names, turn_of
from harness.files import write_json, write_jsonl
from harness.progress import log
from harness.serving import expect, running_server

if TYPE_CHECKING:
    from harness.serving import Server

FILES = ("server.json", "replies.jsonl", "acceptance.json", "samples.jsonl", "accuracy.json", "latency.json")
FAILED_SHARE_MAX = 0.5  # beyond it the server is broken, and there is nothing to measure


class Measurement:
    """One variant's checks, each of which writes its file. Made when the server is up: `checks_s` counts from there.

    Args:
        settings: what to measure.
        variant: name of the variant, for the terminal.
        verifier: the verifier's folder.
        prompts: the held-out prompts.
        out: folder of the results.
    """

    def __init__(self, settings: MeasureSettings, variant: str, verifier: Path, prompts: Prompts, out: Path) -> None:
        self.settings, self.variant, self.verifier, self.prompts, self.out = settings, variant, verifier, prompts, out
        self.evaluate = settings.evaluate
        self.draft_tokens = settings.expected.num_speculative_tokens
        self.render = prompts.render if settings.serve.chat_template == "client" else None
        self.ready_s = time.monotonic()

    def write(self, name: str, content: dict[str, Any], seed: int | None) -> None:
        """Write `name` with its provenance."""
        source = provenance.collect(self.settings.model_dump(), seed, self.settings.scale)
        write_json(self.out / name, content | {"provenance": source})

    def chat(self, server: "Server", max_new_tokens: int, logprobs: bool = False) -> Chat:
        """A client for `server`."""
        return Chat(server.url, server.model_name, max_new_tokens, self.evaluate.seed, logprobs, self.render)

    def check(self, server: "Server") -> None:
        """Refuse a server that is not what was meant, or that cannot take the longest request.

        Raises:
            UserError: names the difference.
        """
        method, serve = self.settings.expected.method, self.settings.serve
        expect(server.report, method, self.draft_tokens, str(self.verifier), serve.max_model_len)
        parts = (self.evaluate.acceptance, self.evaluate.accuracy, self.evaluate.latency, self.evaluate.sampling)
        reply_tokens = max(part.max_new_tokens for part in parts)
        longest = self.prompts.longest_tokens(self.evaluate.acceptance.max_new_tokens)
        # The engine stops drafting for a whole batch when one of its sequences comes within K tokens of the limit.
        check_server(server.url, server.model_name, longest + reply_tokens + self.draft_tokens + 1)
        self.write("server.json", server.report.as_json(), None)

    def acceptance(self, server: "Server") -> None:
        """Write replies.jsonl and acceptance.json; the counters are scraped around each source."""
        settings = self.evaluate.acceptance
        chat = self.chat(server, settings.max_new_tokens, logprobs=True)
        chat.ask_all([next(iter(self.prompts.messages.items()))], 1, f"{self.variant}: warm-up")
        benchmarks, checks, answered = {}, {}, []
        for source, held_out in by_source(self.prompts.rows).items():
            before = self._counters(server)
            rows, answers = self._ask(chat, held_out[: settings.limit], f"{self.variant}: {source}")
            after = self._counters(server)
            answered += [(source, answer) for answer in answers]
            if before is not None and after is not None:
                counted = after.since(before)
                kinds = {row["id"]: row.get("category") for row in rows}
                draws = (self.evaluate.bootstrap_resamples, self.evaluate.seed)
                figures = benchmark(counted, answers, *draws, kinds)
                figures["categories"] |= by_category(answers, *draws, turn_names(rows))
                benchmarks[source] = figures
                checks[source] = identity_checks(figures, counted, answers)
        failed = [{"id": answer.id, "reason": answer.error} for _, answer in answered if answer.error]
        if len(failed) > FAILED_SHARE_MAX * len(answered):
            raise RuntimeError(f"{self.variant}: {len(failed)} of {len(answered)} replies failed, first {failed[0]}")
        replied = [(source, answer) for source, answer in answered if answer.error is None]
        kept = [
            as_row(answer, source) | self.prompts.texts(answer) | self.prompts.images(answer.id)
            for source, answer in replied
        ]
        write_jsonl(self.out / "replies.jsonl", kept)
        content = {"num_speculative_tokens": self.draft_tokens, "benchmarks": benchmarks, "identity_checks": checks}
        self.write("acceptance.json", content | {"failed": failed, "request": chat.body}, self.evaluate.seed)

    def _ask(self, chat: Chat, rows: list[dict[str, Any]], title: str) -> tuple[list[dict[str, Any]], list[Answer]]:
        """Prompts and replies turn by turn, as long as some conversation goes on."""
        concurrency = self.evaluate.acceptance.concurrency
        asked, answers, turn = list(rows), self.prompts.ask(chat, rows, concurrency, title), rows
        latest = answers
        while turn := next_turns(turn, latest):
            self.prompts.add(turn)
            latest = self.prompts.ask(chat, turn, concurrency, f"{title}, turn {turn_of(turn[0]['id'])}")
            asked, answers = asked + turn, answers + latest
        return asked, answers

    def _counters(self, server: "Server") -> Counters | None:
        drafts = self.draft_tokens
        return settled_counters(server.metrics, server.model_name, drafts) if drafts else None

    def samples(self, server: "Server") -> None:
        """Write samples.jsonl: replies at a temperature above 0, which `lossless` tests."""
        settings, seed = self.evaluate.sampling, self.evaluate.seed
        rows = collect(server.url, server.model_name, self.prompts, settings, seed, self.variant, self.render)
        write_jsonl(self.out / "samples.jsonl", rows)

    def accuracy(self, server: "Server") -> None:
        """Write accuracy.json."""
        from harness.evaluation.accuracy import measure_accuracy

        settings = self.evaluate.accuracy
        chat = self.chat(server, settings.max_new_tokens)

        def ask(problems: list[tuple[str, Prompt]], stop: Sequence[str]) -> list[Answer]:
            answers = chat.ask_all(problems, settings.concurrency, f"{self.variant}: accuracy", stop)
            self.prompts.check(answers, {key: prompt for key, prompt in problems if isinstance(prompt, str)})
            return answers

        found = measure_accuracy(self.prompts.rows, ask, self.settings.system_prompt, settings)
        self.write("accuracy.json", found | {"request": chat.body}, self.evaluate.seed)

    def latency(self, server: "Server") -> None:
        """Write latency.json, after requests that are not measured."""
        from harness.evaluation.latency import measure_latency

        settings = self.evaluate.latency
        chosen, others = self.prompts.first(settings.benchmark, settings.requests)
        chat = self.chat(server, settings.max_new_tokens)
        warm_up = (others or chosen)[: settings.warmup_requests]
        warmed = chat.ask_all(warm_up, max(settings.concurrency), f"{self.variant}: warm-up")
        if all(answer.error for answer in warmed):
            raise RuntimeError(f"{self.variant}: every request of the latency warm-up failed: {warmed[0].error}")
        log(f"{self.variant}: latency of {len(chosen)} requests at concurrency {settings.concurrency}")
        found = measure_latency(
            server.url, server.model_name, str(self.verifier), self._rendered(chosen), settings, self.evaluate.seed,
            self.evaluate.bootstrap_resamples,
        )  # fmt: skip
        self.write("latency.json", found | {"checks_s": round(time.monotonic() - self.ready_s, 2)}, self.evaluate.seed)

    def _rendered(self, prompts: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
        return [(key, self.render(messages) if self.render else messages) for key, messages in prompts]


def _import_tools() -> None:
    import harness.evaluation.accuracy
    import harness.evaluation.latency

    harness.evaluation.latency.prepare()


def measure(settings: MeasureSettings, variant: str, model: Path, verifier: Path, prompts: Path, out: Path) -> None:
    """Serve `model`, measure it, and leave the files of `FILES` in `out`, beside the server's log.

    Args:
        settings: what to measure and what to expect.
        variant: name of the variant.
        model: folder to serve: the verifier, or a draft checkpoint that names its verifier.
        verifier: the verifier's folder.
        prompts: heldout.jsonl.
        out: folder of the results; files of an earlier run are removed first.
    """
    rows, _ = read_held_out(prompts, settings.evaluate.latency)
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (out / name).unlink(missing_ok=True)
    with ExitStack() as stack:
        # One thread does both: two would import the same modules at once. The replies wait for the prompts only.
        background = stack.enter_context(ThreadPoolExecutor(1))
        tokenised = background.submit(Prompts, rows, verifier, settings.system_prompt)
        imported = background.submit(_import_tools)
        server = stack.enter_context(
            running_server(str(model), settings.serve, out / "server.log", settings.speculative)
        )
        run = Measurement(settings, variant, verifier, tokenised.result(), out)
        run.check(server)
        run.acceptance(server)
        run.samples(server)
        imported.result()
        run.accuracy(server)
        run.latency(server)
