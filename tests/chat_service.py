"""A small service that speaks OpenAI's chat completions API over HTTP, and says what a test wrote down for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Say:
    """A streamed answer: text in pieces, then tool calls, each cut in two."""

    pieces: Sequence[str] = ()
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    finish: str | None = "stop"
    """None: the connection ends without a last word."""
    holds: bool = False
    """Whether it stays silent in the end until the reader has gone."""


@dataclass
class Refuse:
    """An answer that is no answer."""

    status: int
    message: str = "no"
    headers: Mapping[str, str] = field(default_factory=dict)


def run_python(code: str, text: str = "") -> Say:
    return Say([text] if text else [], [("run_python", {"code": code})], "tool_calls")


class ChatService:
    """Answers requests with the acts of its script, one each."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.script: list[Say | Refuse] = []
        self.models = ["a-model"]
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def last_messages(self) -> list[dict[str, Any]]:
        """What the last request told of the conversation, without the instructions."""
        return self.requests[-1]["messages"][1:]


@contextmanager
def chat_service() -> Iterator[ChatService]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    service = ChatService(f"http://127.0.0.1:{server.server_port}/v1")
    server.service = service  # pyright: ignore[reportAttributeAccessIssue]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": name} for name in self._service.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._service.requests.append(body)
        self._service.keys.append(self.headers["Authorization"])
        if not self._service.script:
            self._answer(500, {"error": {"message": "the script has ended"}})
            return
        act = self._service.script.pop(0)
        if isinstance(act, Refuse):
            self._answer(act.status, {"error": {"message": act.message}}, act.headers)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in _events(act):
            self.wfile.write(f"data: {event}\n\n".encode())
            self.wfile.flush()
        if act.holds:
            self.rfile.read(1)  # until the other side closes

    def _answer(self, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    @property
    def _service(self) -> ChatService:
        return self.server.service  # pyright: ignore[reportAttributeAccessIssue]

    def log_message(self, *_: object) -> None:
        pass


def _events(act: Say) -> Iterator[str]:
    def chunk(delta: object, finish: str | None = None) -> str:
        return json.dumps({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield chunk({"role": "assistant", "content": ""})
    for piece in act.pieces:
        yield chunk({"content": piece})
    for index, (name, arguments) in enumerate(act.calls):
        text = json.dumps(arguments)
        half = len(text) // 2
        begun = {"index": index, "id": f"call-{index}", "type": "function"}
        yield chunk({"tool_calls": [{**begun, "function": {"name": name, "arguments": text[:half]}}]})
        yield chunk({"tool_calls": [{"index": index, "function": {"arguments": text[half:]}}]})
    if act.finish is not None and not act.holds:
        yield chunk({}, act.finish)
        yield "[DONE]"
