"""Streams on the wire, and what happens to work whose caller goes away."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import httpx2
import pytest

from cellbox.server import streams


@pytest.fixture
def client(server: Any) -> Any:
    with server.client() as client:
        yield client


@pytest.fixture
def sandbox(client: httpx2.Client) -> str:
    return f"/v1/sandboxes/{client.post('/v1/sandboxes', json={}).json()['id']}"


def events_of(text: str) -> list[tuple[str, Any]]:
    frames = [frame.split("\n") for frame in text.split("\n\n")[:-1] if not frame.startswith(":")]
    assert all(len(frame) == 2 and frame[0].startswith("event: ") and frame[1].startswith("data: ") for frame in frames)
    return [(frame[0][7:], json.loads(frame[1][6:])) for frame in frames]


def test_the_form_of_a_stream(client: httpx2.Client, sandbox: str) -> None:
    answer = client.post(f"{sandbox}/exec/stream", json={"cmd": "echo é\x85\u2028 😀"})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.content.isascii()
    names = [name for name, _ in events_of(answer.text)]
    assert names == ["stdout", "stdout", "exit"]
    assert events_of(answer.text)[0][1]["chunk"] == "é\x85\u2028"


def test_exactly_one_terminal_event(client: httpx2.Client, sandbox: str) -> None:
    for cmd, last in {"echo x": "exit", "false": "exit", "die": "error"}.items():
        events = events_of(client.post(f"{sandbox}/exec/stream", json={"cmd": cmd}).text)
        assert [name for name, _ in events if name in ("exit", "error")] == [last]
        assert events[-1][0] == last


def test_cells_stream_too(client: httpx2.Client, sandbox: str) -> None:
    context = client.post(f"{sandbox}/repl/sessions").json()["id"]
    url = f"{sandbox}/repl/sessions/{context}/run/stream"
    assert [name for name, _ in events_of(client.post(url, json={"code": "1+1"}).text)] == ["display", "done"]
    printed, last = events_of(client.post(url, json={"code": "sleep(9)", "timeout_ms": 700}).text)
    assert printed[1]["chunk"] == "so far\n"
    assert last[0] == "error"
    assert last[1]["code"] == "cell_timeout"
    assert last[1]["details"]["execution"]["outcome"] == "interrupted"


def test_a_silent_stream_begins_and_is_kept_alive(start_server: Any) -> None:
    with start_server(keepalive_seconds=0.2).client() as client:
        sandbox = f"/v1/sandboxes/{client.post('/v1/sandboxes', json={}).json()['id']}"
        started = time.monotonic()
        with client.stream("POST", f"{sandbox}/exec/stream", json={"cmd": "sleep 1.5"}) as answer:
            assert time.monotonic() - started < 1.2
            text = "".join(answer.iter_text())
        assert text.count(": keepalive\n\n") >= 3
        assert events_of(text)[-1][0] == "exit"


@pytest.mark.parametrize("path", ["exec", "exec/stream"])
def test_a_command_ends_with_its_caller(server: Any, client: httpx2.Client, sandbox: str, path: str) -> None:
    leave_in_the_middle(server, f"{sandbox}/{path}", {"cmd": "sleep 50"})
    server.wait_for(server.control.sandboxes.list("admin")[0].commands.cancelled)


@pytest.mark.parametrize("path", ["run", "run/stream"])
def test_a_cell_ends_with_its_caller_unless_told_otherwise(
    server: Any, client: httpx2.Client, sandbox: str, path: str
) -> None:
    context = client.post(f"{sandbox}/repl/sessions").json()["id"]
    fake = server.control.sandboxes.list("admin")[0].contexts
    url = f"{sandbox}/repl/sessions/{context}/{path}"
    leave_in_the_middle(server, url, {"code": "sleep(1)", "on_disconnect": "detach"})
    server.wait_for(fake.finished)
    assert not fake.cancelled.is_set()
    leave_in_the_middle(server, url, {"code": "sleep(50)"})
    server.wait_for(fake.cancelled)


def test_a_revoked_key_ends_its_streams(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "REVOCATION_SECONDS", 0.1)
    key = server.new_key("ada")
    with server.client(key) as client:
        sandbox = f"/v1/sandboxes/{client.post('/v1/sandboxes', json={}).json()['id']}"
        with client.stream("POST", f"{sandbox}/exec/stream", json={"cmd": "sleep 50"}) as answer:
            server.call(lambda: server.control.keys.revoke(key[:12]))
            events = events_of("".join(answer.iter_text()))
    assert events[-1][0] == "error"
    assert events[-1][1]["code"] == "unauthorized"
    assert server.control.sandboxes.list("ada")[0].commands.cancelled.is_set()


def test_followed_logs(server: Any, client: httpx2.Client, sandbox: str) -> None:
    log = server.control.sandboxes.list("admin")[0].log
    server.call(lambda: (log.say("one"), log.say("a\u2028b")))
    assert client.get(f"{sandbox}/logs").text == "[cellbox] one\n[cellbox] a b\n"
    assert client.get(f"{sandbox}/logs?tail=1&stream=stderr").text == "[cellbox] a b\n"
    assert client.get(f"{sandbox}/logs?stream=stdout").text == ""
    assert client.get(f"{sandbox}/logs?stream=all").status_code == 400
    with client.stream("GET", f"{sandbox}/logs?follow=1") as answer:
        server.call(log.close)
        events = events_of("".join(answer.iter_text()))
    assert [(name, data["line"]) for name, data in events] == [
        ("line", "[cellbox] one\n"),
        ("line", "[cellbox] a\u2028b\n"),
    ]


def leave_in_the_middle(server: Any, path: str, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.settings.bootstrap_key}\r\n"
    address = server.address
    with socket.create_connection((address.host, address.port), timeout=5) as connection:
        connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content)
        time.sleep(0.2)
