"""A scripted OpenAI-compatible server on loopback: JSON or SSE replies, delays, failures, /metrics. Stdlib only.

Used by the tests of evaluation. `reply` gets each request's body and returns the `Scripted` reply to play.
"""

import json
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "toy"


@dataclass
class Scripted:
    """One reply. `chunks` are the token texts of each SSE chunk; a JSON reply joins them."""

    chunks: list[list[str]] = field(default_factory=lambda: [["Hi", "!"]])
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] = field(default_factory=lambda: [1, 2, 3])
    top_logprobs: list[list[tuple[int, float]]] | None = None
    finish_reason: str = "stop"
    content_is_null: bool = False
    reasoning: str | None = None
    spec: dict | None = None
    first_delay_s: float = 0.0
    gap_s: float = 0.0
    status: int = 200
    error_event: bool = False

    @property
    def tokens(self) -> list[str]:
        return [token for chunk in self.chunks for token in chunk]


class FakeServer:
    """State of a running fake: the bodies it was sent, and what it answers."""

    def __init__(self, reply: Callable[[dict], Scripted]) -> None:
        self.reply, self.bodies, self.paths, self.metrics_text = reply, [], [], ""
        self.models = [{"id": MODEL, "max_model_len": 512}]
        self.url = ""


def _json_reply(scripted: Scripted, body: dict) -> dict:
    ids = scripted.token_ids if scripted.token_ids is not None else list(range(10, 10 + len(scripted.tokens)))
    pairs = scripted.top_logprobs or [[(token, -0.1), (0, -3.0)] for token in ids]
    is_chat = "messages" in body
    chat_logprobs = {
        "content": [
            {
                "token": f"token_id:{token}",
                "bytes": list(text.encode()),
                "logprob": top[0][1],
                "top_logprobs": [{"token": f"token_id:{t}", "logprob": p, "bytes": []} for t, p in top],
            }
            for token, text, top in zip(ids, scripted.tokens, pairs, strict=True)
        ]
    }
    logprobs = chat_logprobs if is_chat else {"top_logprobs": [{f"token_id:{t}": p for t, p in top} for top in pairs]}
    text = None if scripted.content_is_null else "".join(scripted.tokens)
    prompt_ids, message = scripted.prompt_token_ids, {"role": "assistant", "content": text}
    said = {"message": message | {"reasoning": scripted.reasoning}} if is_chat else {"text": text}
    return {
        "id": "x",
        "model": MODEL,
        **({"prompt_token_ids": prompt_ids} if is_chat else {}),
        "choices": [{
            "index": 0, **said, **({} if is_chat else {"prompt_token_ids": prompt_ids}), "token_ids": ids,
            "finish_reason": scripted.finish_reason, "logprobs": logprobs if body.get("logprobs") else None,
        }],
        "usage": {"prompt_tokens": len(scripted.prompt_token_ids), "completion_tokens": len(ids)},
        "metrics": {"speculative_decoding": scripted.spec} if scripted.spec else None,
    }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeServer

    def log_message(self, *_: object) -> None:
        pass

    def _send(self, status: int, content: str, kind: str = "application/json") -> None:
        data = content.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send(200, json.dumps({"data": self.fake.models}))
        elif self.path == "/metrics":
            self._send(200, self.fake.metrics_text, "text/plain")
        else:
            self._send(200, "{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wanted = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}.get(self.path)
        if wanted not in body:
            self._send(400, json.dumps({"error": {"message": f"{self.path} takes {wanted}"}}))
            return
        self.fake.bodies.append(body)
        self.fake.paths.append(self.path)
        scripted = self.fake.reply(body)
        if scripted.status != 200:
            self._send(scripted.status, json.dumps({"error": {"message": "scripted failure"}}))
        elif body.get("stream"):
            self._stream(scripted)
        else:
            time.sleep(scripted.first_delay_s)
            self._send(200, json.dumps(_json_reply(scripted, body)))

    def _event(self, content: dict | str) -> None:
        data = f"data: {content if isinstance(content, str) else json.dumps(content)}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _stream(self, scripted: Scripted) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        time.sleep(scripted.first_delay_s)
        sent = 0
        for number, chunk in enumerate(scripted.chunks):
            time.sleep(scripted.gap_s if number else 0)
            sent += len(chunk)
            usage = {"prompt_tokens": len(scripted.prompt_token_ids), "completion_tokens": sent}
            choice = {"index": 0, "delta": {"content": "".join(chunk)}, "finish_reason": None}
            self._event({"id": "x", "choices": [choice], "usage": usage})
        if scripted.error_event:
            self._event({"error": {"message": "scripted failure", "code": 500}})
        else:
            usage = {"prompt_tokens": len(scripted.prompt_token_ids), "completion_tokens": sent}
            self._event({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": scripted.finish_reason}]})
            self._event({"id": "x", "choices": [], "usage": usage})
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


@contextmanager
def fake_server(reply: Callable[[dict], Scripted] = lambda _: Scripted()):
    """Serve `reply` on a free loopback port while the block runs."""
    fake = FakeServer(reply)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": fake}))
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()


def counters_text(
    model: str = MODEL, engine: str = "0", drafts: int = 0, draft_tokens: int = 0, per_position: tuple = ()
) -> str:
    """The drafting counters of one engine as /metrics shows them."""
    labels = f'engine="{engine}",model_name="{model}"'
    lines = []
    for name, value in (("drafts", drafts), ("draft_tokens", draft_tokens), ("accepted_tokens", sum(per_position))):
        lines += [
            f"# TYPE vllm:spec_decode_num_{name} counter",
            f"vllm:spec_decode_num_{name}_total{{{labels}}} {float(value)}",
        ]
        lines += [f"vllm:spec_decode_num_{name}_created{{{labels}}} 1.7e+09"]
    lines.append("# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter")
    for position, value in enumerate(per_position):
        lines.append(
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{position}"}} {float(value)}'
        )
    return "\n".join(lines) + "\n"
