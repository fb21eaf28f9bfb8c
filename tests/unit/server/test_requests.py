"""How requests are read and answered: strictly, within bounds, and in one shape for everything that goes wrong."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import httpx2
import pytest

from cellbox import errors


@pytest.fixture
def client(server: Any) -> Any:
    with server.client() as client:
        yield client


@pytest.fixture
def sandbox(client: httpx2.Client) -> str:
    return f"/v1/sandboxes/{client.post('/v1/sandboxes', json={}).json()['id']}"


def assert_error(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    body = answer.json()
    assert set(body) == {"error", "code", "detail", "details", "request_id"}
    assert (answer.status_code, body["code"]) == (status, code)
    assert isinstance(body["error"], str)
    assert body["request_id"] == answer.headers["x-request-id"]
    return body


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/nope", "/v1/sandboxes/", "/v1//sandboxes", "/v1/sandboxes/%ff", "/v1/sandboxes/a%2Fexec"]
)
def test_unknown_routes_answer_in_the_usual_shape(client: httpx2.Client, path: str) -> None:
    assert client.get(path).status_code == 404
    assert client.get(path).json()["code"] in ("not_found", "sandbox_not_found")


def test_a_wrong_method_says_which_there_are(client: httpx2.Client) -> None:
    answer = client.put("/v1/sandboxes")
    assert_error(answer, 405, "invalid_request")
    assert answer.headers["allow"] == "GET, POST"


def test_the_public_routes(client: httpx2.Client) -> None:
    assert client.get("/healthz").json() == client.get("/v1/healthz").json() == {"status": "ok"}
    assert client.get("/version").json()["name"] == "cellbox"
    assert 'cellbox_http_requests_total{operation="get_version",status="200"}' in client.get("/metrics").text


def test_metrics_have_bounded_labels(start_server: Any) -> None:
    with start_server().client() as client:
        client.post("/v1/sandboxes", json={})
        for number in range(5):
            client.get(f"/v1/made-up-{number}")
        text = client.get("/metrics").text
    assert "made-up" not in text
    assert 'operation="unknown",status="404"} 5.0' in text
    assert "cellbox_sandboxes 1.0" in text
    assert 'cellbox_sandbox_boots_total{mode="fake"} 1.0' in text


@pytest.mark.parametrize("sent", ["abc-123", "x" * 64])
def test_a_request_id_is_echoed(client: httpx2.Client, sent: str) -> None:
    assert client.get("/healthz", headers={"x-request-id": sent}).headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["x" * 65, "a b", "é", ""])
def test_a_bad_request_id_is_replaced(client: httpx2.Client, sent: str) -> None:
    minted = client.get("/healthz", headers=[(b"x-request-id", sent.encode())]).headers["x-request-id"]
    assert minted != sent
    assert len(minted) == 16


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b'{"templat":"base"}',
        b'{"owner":"eve"}',
        b'{"metadata":{"a":1}}',
        b'{"ttl_seconds":-1}',
        b'{"ttl_seconds":0}',
        b'{"ttl_seconds":"60"}',
        b'{"ttl_seconds":1e999}',
        b'{"memory_mb":' + b"9" * 100_000 + b"}",
        b'{"template":"../etc"}',
        b"[" * 10_000,
        b'{"metadata":' + b'{"a":' * 10_000,
        b'{"metadata":{"\\ud800":"x"}, "x": 1}',
        b"\xff\xfe",
        b"{}{}",
    ],
    ids=range(18),
)
def test_bad_bodies_are_refused_quickly(client: httpx2.Client, body: bytes) -> None:
    started = time.monotonic()
    assert_error(client.post("/v1/sandboxes", content=body), 400, "invalid_request")
    assert time.monotonic() - started < 0.5
    assert client.get("/v1/sandboxes").json() == []


@pytest.mark.parametrize(
    "content_type", [None, "application/json", "application/octet-stream", "application/json; charset=utf-8"]
)
def test_json_is_taken_under_any_name_that_no_form_can_send(client: httpx2.Client, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    assert client.post("/v1/sandboxes", content=b'{"ttl_seconds":60}', headers=headers).json()["ttl_seconds"] == 60


def test_an_empty_body_stands_for_an_empty_object(client: httpx2.Client, sandbox: str) -> None:
    assert client.post("/v1/sandboxes", content=b"", headers={"content-type": "text/plain"}).status_code == 201
    assert_error(client.post(f"{sandbox}/exec"), 400, "invalid_request")


def test_bodies_over_the_limit_are_refused(start_server: Any) -> None:
    with start_server(max_json_bytes=10_000).client() as client:
        body = b'{"template":"' + b"x" * 20_000 + b'"}'
        assert_error(client.post("/v1/sandboxes", content=body), 413, "too_large")
        assert_error(client.post("/v1/sandboxes", content=iter([body[:5000], body[5000:]])), 413, "too_large")
        assert client.get("/healthz").status_code == 200  # on the same connection


def test_100_mib_of_json_are_refused_before_they_are_read(server: Any) -> None:
    address = server.address
    with socket.create_connection((address.host, address.port), timeout=5) as connection:
        head = "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\n"
        connection.sendall((head + f"Authorization: Bearer {server.settings.bootstrap_key}\r\n\r\n").encode())
        started = time.monotonic()
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")
        assert time.monotonic() - started < 0.5


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip"])
def test_compressed_bodies_are_refused(client: httpx2.Client, sandbox: str, encoding: str) -> None:
    headers = {"content-encoding": encoding}
    assert client.post("/v1/sandboxes", content=b"{}", headers=headers).status_code == 415
    assert client.put(f"{sandbox}/fs", params={"path": "/a"}, content=b"x", headers=headers).status_code == 415
    assert client.put(
        f"{sandbox}/fs", params={"path": "/a"}, content=b"x", headers={"content-encoding": "identity"}
    ).is_success


@pytest.mark.parametrize(
    "query",
    [
        "verbose=1",
        "paht=/",
        "path=/&path=/x",
        "path=/&depth=x",
        "path=/&depth=-1",
        "&".join(f"a{n}" for n in range(100)),
    ],
)
def test_odd_query_parameters_are_refused(client: httpx2.Client, sandbox: str, query: str) -> None:
    assert_error(client.get(f"{sandbox}/fs/dir?{query}"), 400, "invalid_request")


@pytest.mark.parametrize("raw", ["%FF%FE", "caf%E9", "%C3%A9%2F..%2F", "a%2Bb+c", "%25", "%F0%9F%98%80", "%ED%A0%80"])
def test_names_that_are_no_utf8_come_through(server: Any, client: httpx2.Client, sandbox: str, raw: str) -> None:
    put = client.put(f"{sandbox}/fs?path=/d/{raw}", content=b"content")
    assert put.is_success
    name = json.loads(put.content)["path"]
    assert put.content.isascii() or name.isprintable()
    assert client.get(f"{sandbox}/fs?path=/d/{raw}").content == b"content"
    fake = server.control.sandboxes.list("admin")[0]
    assert list(fake.files.contents) == [name]
    body = json.dumps({"source": name, "target": "/moved"})
    assert client.post(f"{sandbox}/fs/move", content=body.encode()).is_success
    assert list(fake.files.contents) == ["/moved"]


def test_a_download_is_an_attachment_and_nothing_a_browser_would_run(client: httpx2.Client, sandbox: str) -> None:
    for path, disposition in {
        "/a/report final.html": 'attachment; filename="report final.html"',
        '/a/x";\r\n.html': "attachment; filename=\"x____.html\"; filename*=UTF-8''x%22%3B%0D%0A.html",
        "/a/ä.txt": "attachment; filename=\"_.txt\"; filename*=UTF-8''%C3%A4.txt",
    }.items():
        client.put(f"{sandbox}/fs", params={"path": path}, content=b"<script>")
        answer = client.get(f"{sandbox}/fs", params={"path": path})
        assert answer.headers["content-disposition"] == disposition
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-length"] == "8"


@pytest.mark.parametrize(
    ("asked", "status", "content", "content_range"),
    [
        ("bytes=0-3", 206, b"0123", "bytes 0-3/10"),
        ("bytes=4-", 206, b"456789", "bytes 4-9/10"),
        ("bytes=8-100", 206, b"89", "bytes 8-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=10-", 416, None, None),
        ("bytes=-0", 416, None, None),
        ("bytes=5-2", 200, b"0123456789", None),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("bytes=-", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
    ],
)
def test_ranges(
    client: httpx2.Client, sandbox: str, asked: str, status: int, content: bytes | None, content_range: str | None
) -> None:
    client.put(f"{sandbox}/fs?path=/f", content=b"0123456789")
    answer = client.get(f"{sandbox}/fs?path=/f", headers={"range": asked})
    assert answer.status_code == status
    assert answer.headers.get("content-range") == (content_range if status != 416 else "bytes */10")
    if content is not None:
        assert answer.content == content


def test_uploads_are_streamed_and_bounded(start_server: Any) -> None:
    server = start_server(max_file_bytes=1_000_000)
    with server.client() as client:
        sandbox = f"/v1/sandboxes/{client.post('/v1/sandboxes', json={}).json()['id']}"
        pieces = (b"x" * 100_000 for _ in range(10))
        assert client.put(f"{sandbox}/fs?path=/f", content=pieces).json()["bytes"] == 1_000_000
        assert_error(client.put(f"{sandbox}/fs?path=/g", content=b"x" * 1_000_001), 413, "too_large")
        pieces = (b"x" * 100_000 for _ in range(11))
        assert_error(client.put(f"{sandbox}/fs?path=/g", content=pieces), 413, "too_large")
        client.put(f"{sandbox}/fs?path=/f&append=true&mode=0600&user=nobody", content=b"y")
        assert len(client.get(f"{sandbox}/fs?path=/f").content) == 1_000_001


def test_timeouts_carry_what_was_printed(client: httpx2.Client, sandbox: str) -> None:
    answer = client.post(f"{sandbox}/exec", json={"cmd": "sleep 9", "timeout_seconds": 0.1})
    body = assert_error(answer, 500, "command_timeout")
    assert body["error"] == "command timeout after 0.1s"
    assert body["details"]["result"]["stdout"] == "so far\n"
    context = client.post(f"{sandbox}/repl/sessions").json()["id"]
    answer = client.post(f"{sandbox}/repl/sessions/{context}/run", json={"code": "sleep(9)", "timeout_ms": 100})
    body = assert_error(answer, 500, "cell_timeout")
    assert body["error"].startswith("cell timeout after 0.1s: ")
    assert body["details"]["execution"]["stdout"] == "so far\n"


def test_faults_are_told_without_what_caused_them(client: httpx2.Client, sandbox: str) -> None:
    body = assert_error(client.post(f"{sandbox}/exec", json={"cmd": "fail"}), 500, "internal_error")
    assert "secret" not in json.dumps(body)


@pytest.mark.parametrize(
    "words",
    [
        "connect: connection refused",
        "dial: No route to host",
        "i/o timeout",
        "context deadline exceeded",
        "timeout",
        "time-out",
    ],
)
def test_faults_never_hold_words_that_make_clients_retry(server: Any, client: httpx2.Client, words: str) -> None:
    server.control.sandboxes.refusal = errors.GuestError(f"guest: {words}", detail=words)
    body = assert_error(client.post("/v1/sandboxes", json={}), 502, "guest_error")
    text = f"{body['error']} {body['detail']}".lower()
    assert not any(
        word in text for word in ("connection refused", "no route", "timeout", "time-out", "deadline exceeded")
    )


def test_a_refusal_says_when_to_come_back(server: Any, client: httpx2.Client) -> None:
    server.control.sandboxes.refusal = errors.CapacityError("no room", retry_after_seconds=2.5)
    answer = client.post("/v1/sandboxes", json={})
    assert_error(answer, 503, "no_capacity")
    assert answer.headers["retry-after"] == "2.5"


def test_broken_http_is_survived(server: Any) -> None:
    address = server.address
    for attack in (
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000,
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection((address.host, address.port), timeout=5) as connection:
            connection.sendall(attack)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(4096)
    with server.client() as client:
        assert client.get("/healthz").status_code == 200
