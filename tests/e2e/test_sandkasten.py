"""Sandkasten's surface through its unmodified client: every row of its tables, and its promises kept."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sandkasten

from .conftest import Daemon

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def client(daemon: Daemon, anyio_backend: str) -> AsyncGenerator[sandkasten.SandboxClient]:
    async with sandkasten.SandboxClient(base_url=daemon.url, api_key=daemon.admin_key) as client:
        yield client


@pytest.fixture(scope="module")
async def session(client: sandkasten.SandboxClient) -> AsyncGenerator[sandkasten.Session]:
    async with await client.create_session(ttl_seconds=900) as session:
        yield session


async def request(daemon: Daemon, method: str, path: str, **options: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {daemon.admin_key}"}
    async with httpx.AsyncClient(base_url=daemon.url, headers=headers, timeout=30) as http:
        return await http.request(method, path, **options)


async def test_the_shell_keeps_its_state(session: sandkasten.Session) -> None:
    """The reference's headline promise, which it does not keep."""
    moved = await session.exec("cd /tmp && export FOO=bar && f() { echo f; }")
    assert (moved.exit_code, moved.cwd, moved.output) == (0, "/tmp", "")
    after = await session.exec("pwd; echo $FOO; f; sleep 300 & echo $! > /tmp/job")
    assert (after.output, after.truncated) == ("/tmp\nbar\nf\n", False)
    assert (await session.exec("kill -0 $(cat /tmp/job) && echo alive")).output == "alive\n"
    assert (await session.info()).cwd == "/tmp"
    ended = await session.exec("exit 7")
    assert (ended.exit_code, ended.cwd) == (7, "/tmp")
    assert (await session.exec("echo $FOO; f; cd /workspace")).output == "bar\nf\n"


async def test_output_is_the_commands_alone(session: sandkasten.Session) -> None:
    assert (await session.exec("echo hello; echo oops >&2")).output == "hello\noops\n"
    assert (await session.exec("cat; echo after")).output == "after\n"
    assert (await session.exec(r"printf 'a\033[31mred\033[0m\r\nb\n'")).output == "ared\nb\n"
    raw = await session.exec(r"printf '\033[31mred\033[0m\n'; [ -t 1 ] && echo terminal", raw_output=True)
    assert raw.output == "\x1b[31mred\x1b[0m\r\nterminal\r\n"
    assert (await session.exec("no-such-program")).exit_code == 127
    assert (await session.exec(f": '{'x' * 900_000}'; echo long")).output == "long\n"
    assert (
        await session.exec("getent hosts localhost && python3 -c 'import multiprocessing as m; m.Lock()'")
    ).exit_code == 0
    much = await session.exec("head -c 9000000 /dev/zero | tr '\\0' x")
    assert much.truncated
    assert "bytes cut here" in much.output


async def test_a_stream_streams(session: sandkasten.Session) -> None:
    arrivals: list[tuple[str, float]] = []
    started = time.monotonic()
    async for chunk in session.exec_stream("for n in 1 2 3; do echo $n; sleep 0.5; done; echo ä; cd /; (exit 3)"):
        arrivals.append((chunk.output, time.monotonic() - started))
        last = chunk
    assert "".join(text for text, _ in arrivals) == "1\n2\n3\nä\n"
    assert arrivals[0][1] < arrivals[-1][1] - 0.8, "the first came long before the last"
    assert (last.done, last.exit_code, last.cwd) == (True, 3, "/")
    await session.exec("cd /workspace")


async def test_a_time_limit_kills_and_the_session_goes_on(session: sandkasten.Session) -> None:
    await session.exec("X=kept")
    started = time.monotonic()
    with pytest.raises(httpx.HTTPStatusError) as caught:
        await session.exec("echo before; sleep 1234", timeout_ms=500)
    assert time.monotonic() - started < 10
    assert caught.value.response.status_code == 504
    told = caught.value.response.json()
    assert told["error_code"] == "COMMAND_TIMEOUT"
    assert "command timeout" in told["message"]
    assert told["details"]["output"] == "before\n"
    with pytest.raises(sandkasten.SandkastenStreamError, match="command timeout"):
        async for _ in session.exec_stream("sleep 1234", timeout_ms=300):
            pass
    assert (await session.exec("echo $X; pgrep -fc 'sleep 123[4]'")).output == "kept\n0\n"


async def test_commands_of_a_session_take_turns(session: sandkasten.Session) -> None:
    slow, quick = await asyncio.gather(session.exec("sleep 0.4; N=1; echo a"), session.exec("echo b$N"))
    assert {slow.output, quick.output} in ({"a\n", "b1\n"}, {"a\n", "b\n"})


async def test_files(session: sandkasten.Session, tmp_path: Path) -> None:
    binary = bytes(range(256)) * 20_000
    await session.write("sub/dir/data.bin", binary)
    await session.write("/workspace/text.txt", "héllo")
    await session.write("empty", "")
    read = await session.read("sub/dir/data.bin")
    assert (read.content, read.truncated, read.path) == (binary, False, "sub/dir/data.bin")
    assert (await session.read("text.txt")).content.decode() == "héllo"
    assert (await session.read("empty")).content == b""
    part = await session.read("text.txt", max_bytes=2)
    assert (len(part.content), part.truncated) == (2, True)
    source = tmp_path / "upload.bin"
    source.write_bytes(binary)
    assert await session.upload(source) == ["/workspace/upload.bin"]
    with source.open("rb") as file:
        named = await session.upload(file, dest_path="sub/dir", filename="named.bin")
    assert named == ["/workspace/sub/dir/named.bin"]
    with pytest.raises(httpx.HTTPStatusError) as caught:
        await session.read("sub")
    assert caught.value.response.status_code == 409
    digest = hashlib.sha256(binary).hexdigest()
    told = await session.exec("sha256sum upload.bin sub/dir/named.bin sub/dir/data.bin | cut -c -64 | sort -u")
    assert told.output == f"{digest}\n"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "exec", {"cmd": ""}, 400, "cmd is required"),
        ("POST", "exec", {"cmd": "true", "timeout_ms": -1}, 400, "timeout_ms must be non-negative"),
        ("POST", "exec", {"cmd": "true", "timeout_ms": 600_001}, 400, "timeout_ms must not exceed 600000"),
        ("POST", "exec", {"cmd": "x" * 1_100_000}, 400, "cmd is too large (1100000 bytes)"),
        ("POST", "exec/stream", {"cmd": ""}, 400, "cmd is required"),
        ("POST", "fs/write", {"path": "x"}, 400, "either 'text' or 'content_base64' must be provided"),
        ("POST", "fs/write", {"path": "x", "text": "a", "content_base64": "YQ=="}, 400, "not both"),
        ("POST", "fs/write", {"path": "../etc/x", "text": "a"}, 400, "path must be under /workspace"),
        ("POST", "fs/write", {"path": "/workspace", "text": "a"}, 400, "path must point to a file"),
        ("POST", "fs/write", {"text": "a"}, 400, "path is required"),
        ("GET", "fs/read", None, 400, "path query parameter is required"),
        ("GET", "fs/read?path=x&max_bytes=-1", None, 400, "max_bytes must be non-negative"),
        ("GET", "fs/read?path=nowhere", None, 404, "nowhere"),
    ],
)
async def test_refusals(
    daemon: Daemon, session: sandkasten.Session, method: str, path: str, body: Any, status: int, message: str
) -> None:
    answer = await request(daemon, method, f"/v1/sessions/{session.id}/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error_code"] in ("INVALID_REQUEST", "PATH_NOT_FOUND")
    assert message in answer.json()["message"]


async def test_sessions_come_and_go(daemon: Daemon, client: sandkasten.SandboxClient) -> None:
    session = await client.create_session(image="base", ttl_seconds=60)
    info = await session.info()
    assert (info.image, info.status, info.cwd, info.workspace_id) == ("base", "running", "/workspace", None)
    assert info.created_at.endswith("Z")
    before = info.expires_at
    await asyncio.sleep(1.1)
    await session.exec("true")
    info = await session.info()
    assert info.expires_at > before, "its time begins anew with each command"
    assert info.expires_at < before.replace(before[:4], str(int(before[:4]) + 1)), "and is the time that was asked for"
    assert session.id in [one.id for one in await client.list_sessions()]
    stats = await session.stats()
    assert stats.memory_bytes > 0
    assert stats.memory_limit > 0
    assert stats.cpu_usage_usec > 0
    assert (await client.get_session(session.id)).id == session.id
    started = time.monotonic()
    await session.destroy()
    assert time.monotonic() - started < 5
    await session.destroy()
    for call in (session.info(), session.exec("true"), session.read("x")):
        with pytest.raises(httpx.HTTPStatusError) as caught:
            await call
        assert caught.value.response.status_code == 404
        assert caught.value.response.json()["error_code"] == "SESSION_NOT_FOUND"
    with pytest.raises(sandkasten.SandkastenStreamError, match="session not found"):
        async for _ in session.exec_stream("true"):
            pass
    assert session.id not in [one.id for one in await client.list_sessions()]
    with pytest.raises(httpx.HTTPStatusError) as caught:
        await client.create_session(image="no-such-image")
    assert caught.value.response.json()["error_code"] == "INVALID_IMAGE"
    async with sandkasten.SandboxClient(base_url=daemon.url, api_key="wrong") as stranger:
        with pytest.raises(httpx.HTTPStatusError) as caught:
            await stranger.list_sessions()
    assert (caught.value.response.status_code, caught.value.response.json()["error_code"]) == (401, "UNAUTHORIZED")


async def test_workspaces_outlive_sessions(daemon: Daemon, client: sandkasten.SandboxClient) -> None:
    async with await client.create_session(image="base", workspace_id="kept-files") as first:
        await first.write("notes.txt", "from the first")
        assert (await first.info()).workspace_id == "kept-files"
        assert "kept-files" in [workspace.id for workspace in await client.list_workspaces()]
    path = "/v1/workspaces/kept-files/fs"
    assert (await request(daemon, "GET", path)).json()["entries"] == [{"name": "notes.txt", "is_dir": False}]
    assert (await request(daemon, "POST", f"{path}/write", json={"path": "/sub/b", "text": "b"})).json() == {"ok": True}
    uploaded = await request(
        daemon, "POST", f"{path}/upload", files={"file": ("c.bin", b"\0\xff")}, data={"path": "sub"}
    )
    assert uploaded.json() == {"ok": True, "paths": ["sub/c.bin"]}
    read = await request(daemon, "GET", f"{path}/read", params={"path": "sub/c.bin"})
    assert read.json() == {"path": "sub/c.bin", "content_base64": "AP8=", "truncated": False}
    async with await client.create_session(image="base", workspace_id="kept-files") as second:
        told = await second.exec("cat notes.txt sub/b")
        assert told.output == "from the firstb"
    await client.delete_workspace("kept-files")
    await client.delete_workspace("kept-files")
    assert "kept-files" not in [workspace.id for workspace in await client.list_workspaces()]
