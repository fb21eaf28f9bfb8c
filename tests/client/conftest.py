"""A tiny scripted HTTP server on a real socket: it can break in every way that a daemon or a proxy can."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Seen:
    """One request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = bytes | list[bytes] | Callable[[Seen], bytes]


@dataclass
class ScriptedServer:
    """Answers each route with its scripted answers in turn, the last one for ever. Empty bytes hang up."""

    listener: socket.socket
    routes: dict[str, list[Answer]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    connections: list[socket.socket] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def on(self, route: str, *answers: Answer) -> None:
        """`route` is `METHOD /path`, with `*` for any rest."""
        self.routes[route] = list(answers)

    def targets(self, method: str) -> list[str]:
        return [seen.target for seen in self.seen if seen.method == method]

    def answer_for(self, seen: Seen) -> bytes | list[bytes]:
        path = seen.target.split("?")[0]
        for route, answers in self.routes.items():
            method, _, pattern = route.partition(" ")
            if method == seen.method and (path == pattern or (pattern[-1] == "*" and path.startswith(pattern[:-1]))):
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                return answer(seen) if callable(answer) else answer
        return reply(404, {"error": f"no route {seen.method} {path}", "code": "not_found"})

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except (OSError, ValueError):
                return
            self.connections.append(connection)
            threading.Thread(target=self._talk, args=(connection, len(self.connections)), daemon=True).start()

    def _talk(self, connection: socket.socket, number: int) -> None:
        with connection, connection.makefile("rb") as reader:
            try:
                while (seen := _read_request(reader, number)) is not None:
                    self.seen.append(seen)
                    answer = self.answer_for(seen)
                    for piece in [answer] if isinstance(answer, bytes) else answer:
                        connection.sendall(piece)
                    if not answer or (isinstance(answer, list) and answer[-1] == b""):
                        return
            except (OSError, ValueError):
                return


def _read_request(reader: Any, number: int) -> Seen | None:
    line = reader.readline().decode().split()
    if len(line) != 3:
        return None
    headers: dict[str, str] = {}
    while (header := reader.readline().strip()) != b"":
        name, _, value = header.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(reader.readline(), 16):
            body += reader.read(size)
            reader.readline()
        reader.readline()
    elif length := int(headers.get("content-length", 0)):
        body = reader.read(length)
    return Seen(line[0], line[1], headers, body, number)


def reply(status: int, body: Any = b"", **headers: str) -> bytes:
    """One whole answer; anything but bytes goes as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = headers.pop("content_type", "application/json")
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}", f"Content-Type: {kind}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def events(*items: tuple[str, Any], ends: bool = True, size: int = 7) -> list[bytes]:
    """A chunked event stream, cut at awkward places; without `ends` the connection breaks in its middle."""
    text = ": keepalive\n\n" + "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in items)
    raw = text.encode()
    pieces = [raw[start : start + size] for start in range(0, len(raw), size)]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = [f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces]
    return [head, b"".join(body), b"0\r\n\r\n" if ends else b""]


SANDBOX = {
    "id": "sb-1",
    "template": "code-interpreter",
    "status": "running",
    "cpu": 1,
    "memory_mb": 512,
    "disk_mb": 512,
    "created_at": "2026-11-30T00:00:00Z",
    "boot_ms": 120.5,
    "boot_mode": "snapshot",
}
CONTEXT = {"id": "ctx-1", "sandbox_id": "sb-1", "language": "python", "created_at": "2026-11-30T00:00:00Z"}
RUN = "POST /v1/sandboxes/sb-1/repl/sessions/ctx-1/run"


@dataclass
class Kit:
    """What the tests need of this module: they can't import it."""

    server: ScriptedServer
    reply: Callable[..., bytes] = field(default=reply)
    events: Callable[..., list[bytes]] = field(default=events)
    run: str = RUN
    sandbox: dict[str, Any] = field(default_factory=lambda: dict(SANDBOX))

    @property
    def url(self) -> str:
        return self.server.url

    def on(self, route: str, *answers: Answer) -> None:
        self.server.on(route, *answers)

    @property
    def seen(self) -> list[Seen]:
        return self.server.seen


@pytest.fixture
def daemon() -> Iterator[Kit]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = ScriptedServer(listener)
        server.on("POST /v1/sandboxes", reply(201, SANDBOX))
        server.on("GET /v1/sandboxes/sb-1", reply(200, SANDBOX))
        server.on("DELETE /v1/sandboxes/sb-1", reply(204))
        server.on("POST /v1/sandboxes/sb-1/repl/sessions", reply(201, CONTEXT))
        server.on("GET /v1/sandboxes/sb-1/repl/sessions", reply(200, [CONTEXT]))
        server.on("DELETE /v1/sandboxes/sb-1/repl/sessions/ctx-1", reply(204))
        threading.Thread(target=server.serve, daemon=True).start()
        yield Kit(server)
        listener.shutdown(socket.SHUT_RDWR)
        for connection in server.connections:
            connection.close()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
