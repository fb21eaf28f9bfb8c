"""What can go wrong between client and daemon, and what must never be done twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cellbox import (
    APIError,
    AsyncClient,
    AuthenticationError,
    ConnectionLostError,
    DaemonUnavailableError,
    InternalError,
    NotFoundError,
    PathNotFoundError,
    QuotaExceededError,
    TemplateBuildError,
)

FS = "/v1/sandboxes/sb-1/fs"


async def test_lost_answer_to_a_command_is_never_sent_again(daemon: Any) -> None:
    daemon.on("POST /v1/sandboxes/sb-1/exec", b"")
    async with AsyncClient(daemon.url) as client:
        sandbox = await client.sandboxes.get("sb-1")
        with pytest.raises(ConnectionLostError, match="whether it ran is unknown"):
            await sandbox.exec("echo x >> n")
    assert len(daemon.server.targets("POST")) == 1


async def test_lost_answer_to_a_question_is_asked_again_once(daemon: Any) -> None:
    daemon.on("GET /v1/sandboxes/sb-1", b"", daemon.reply(200, daemon.sandbox))
    async with AsyncClient(daemon.url) as client:
        assert (await client.sandboxes.get("sb-1")).id == "sb-1"
        daemon.on("GET /v1/sandboxes/sb-1", b"")
        with pytest.raises(ConnectionLostError):
            await client.sandboxes.get("sb-1")
    assert len(daemon.seen) == 4


async def test_nobody_there() -> None:
    async with AsyncClient("http://127.0.0.1:9") as client:
        with pytest.raises(DaemonUnavailableError, match="Nothing was sent"):
            await client.sandboxes.create()


async def test_silent_daemon(daemon: Any) -> None:
    daemon.on("GET /v1/me", [b"HTTP/1.1 200 OK\r\n"])
    async with AsyncClient(daemon.url, timeout_seconds=0.05) as client:
        with pytest.raises(ConnectionLostError, match=r"silent for 0\.05 s"):
            await client.me()


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (500, b"", APIError, "the answer is empty"),
        (502, b"<html><h1>Bad\nGateway</h1></html>", APIError, "<h1>Bad Gateway</h1>"),
        (404, b"nope", NotFoundError, "nope"),
        (401, {"error": "unauthorized", "detail": "missing bearer token"}, AuthenticationError, "missing bearer"),
        (500, {"error": "odd", "code": "from_the_future"}, InternalError, "odd"),
        (418, {"error": "odd", "code": "from_the_future"}, APIError, "odd"),
        (429, {"error": "max sandboxes reached", "max": 10}, QuotaExceededError, "max sandboxes"),
        (302, b"", APIError, "points to 'https://elsewhere/'"),
        (200, b"<html>login</html>", APIError, "not what a Cellbox daemon sends"),
        (200, b"", APIError, "not what a Cellbox daemon sends"),
        (200, {"id": 5}, APIError, "not what a Cellbox daemon sends"),
    ],
)
async def test_odd_answers_are_typed(daemon: Any, status: int, body: Any, kind: type[APIError], text: str) -> None:
    daemon.on("GET /v1/me", daemon.reply(status, body, Location="https://elsewhere/"))
    async with AsyncClient(daemon.url) as client:
        with pytest.raises(kind) as caught:
            await client.me()
    assert text in str(caught.value)
    assert caught.value.http_status == status


async def test_version_is_not_below_v1(daemon: Any) -> None:
    daemon.on("GET /version", daemon.reply(200, {"name": "cellbox", "version": "9"}))
    async with AsyncClient(daemon.url + "/v1/") as client:
        assert (await client.version()).version == "9"


async def test_identifier_can_not_leave_its_place(daemon: Any) -> None:
    async with AsyncClient(daemon.url) as client:
        with pytest.raises(ValueError, match="sandbox_id"):
            await client.sandboxes.get("..")
        with pytest.raises(NotFoundError):
            await client.sandboxes.get("sb-1/../../me")
    assert daemon.seen[-1].target == "/v1/sandboxes/sb-1%2F..%2F..%2Fme"


async def test_files(daemon: Any, tmp_path: Path) -> None:
    local = tmp_path / "in.bin"
    local.write_bytes(os.urandom(700_000))
    daemon.on(f"PUT {FS}", lambda seen: daemon.reply(200, {"path": "/x", "bytes": len(seen.body)}))
    daemon.on(f"GET {FS}", daemon.reply(200, local.read_bytes()))
    async with AsyncClient(daemon.url) as client:
        files = (await client.sandboxes.get("sb-1")).filesystem
        assert (await files.write("/é", "é", mode=0o755)).bytes == 2
        assert (await files.append(b"/\xff", b"a")).bytes == 1
        assert (await files.upload(local, "/x")).bytes == 700_000
        assert (await files.upload(iter([b"ab", b"c"]), "/x")).bytes == 3
        with local.open("rb") as file:
            assert (await files.upload(file, "/x")).bytes == 700_000
        assert await files.download("/x", tmp_path / "out.bin") == 700_000
        assert await files.read("/x", offset=5, length=4) == local.read_bytes()[5:9]
    assert (tmp_path / "out.bin").read_bytes() == local.read_bytes()
    targets = daemon.server.targets("PUT")
    assert targets[:2] == [f"{FS}?path=/%C3%A9&mode=755", f"{FS}?path=/%FF&append=true"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.bin", "out.bin"]


async def test_failed_download_leaves_the_old_file(daemon: Any, tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_text("old")
    daemon.on(f"GET {FS}", daemon.reply(404, {"error": "no such file", "code": "path_not_found"}))
    async with AsyncClient(daemon.url) as client:
        files = (await client.sandboxes.get("sb-1")).filesystem
        with pytest.raises(FileNotFoundError):
            await files.download("/x", target)
        daemon.on(f"GET {FS}", [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnew", b""])
        with pytest.raises(ConnectionLostError):
            await files.download("/x", target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


async def test_failed_source_writes_nothing(daemon: Any) -> None:
    def source() -> Any:
        yield b"a"
        raise KeyError("mine")

    async with AsyncClient(daemon.url) as client:
        files = (await client.sandboxes.get("sb-1")).filesystem
        with pytest.raises(KeyError):
            await files.upload(source(), "/x")
    assert daemon.server.targets("PUT") == []


async def test_names_that_are_no_utf8(daemon: Any) -> None:
    entry = {"name": "\udcff", "path": "/\udcff", "is_dir": False, "size": 0, "mode": "f", "mtime": 0}
    daemon.on(f"GET {FS}/dir", daemon.reply(200, {"path": "/", "entries": [entry]}))
    daemon.on(f"POST {FS}/move", daemon.reply(200, entry))
    async with AsyncClient(daemon.url) as client:
        files = (await client.sandboxes.get("sb-1")).filesystem
        (found,) = await files.list("/")
        assert os.fsencode(found.name) == b"\xff"
        await files.move(b"/\xff", "/b")
    assert daemon.seen[-1].json["source"] == "/\udcff"


async def test_walk_and_exists(daemon: Any) -> None:
    def entry(name: str, is_dir: bool) -> dict[str, Any]:
        return {"name": name, "path": name, "is_dir": is_dir, "size": 0, "mode": "d" if is_dir else "f", "mtime": 0}

    pages = {"/w": [entry("d", True), entry("f", False)], "/w/d": [entry("g", False)]}
    daemon.on(
        f"GET {FS}/dir", lambda seen: daemon.reply(200, {"path": "", "entries": pages[seen.target.split("path=")[1]]})
    )
    daemon.on(f"GET {FS}/stat", daemon.reply(404, {"error": "no such file", "code": "path_not_found"}))
    async with AsyncClient(daemon.url) as client:
        files = (await client.sandboxes.get("sb-1")).filesystem
        walked = [(top, [f.name for f in found]) async for top, _, found in files.walk("/w")]
        assert not await files.exists("/nope")
        with pytest.raises(PathNotFoundError):
            await files.stat("/nope")
    assert walked == [("/w", ["f"]), ("/w/d", ["g"])]


async def test_template_build_shows_its_log(daemon: Any, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('name = "mine"')
    build = {"id": "b1", "name": "mine", "status": "queued", "started_at": "2026-11-30T00:00:00Z"}
    daemon.on("POST /v1/templates/build", daemon.reply(202, build))
    daemon.on(
        "GET /v1/templates/builds/b1/logs",
        daemon.events(("line", {"line": "step 1"}), ("done", {"build": {**build, "status": "done"}})),
    )
    lines: list[str] = []
    async with AsyncClient(daemon.url) as client:
        assert (await client.templates.build(tmp_path, on_line=lines.append)).status == "done"
    assert lines == ["step 1"]
    assert b'name="recipe.toml"; filename="recipe.toml"\r\n' in daemon.seen[0].body


async def test_ensuring_a_template_builds_it_once(daemon: Any) -> None:
    facts = {"name": "base", "digest": "", "cpu": 1, "memory_mb": 512, "disk_mb": 512}
    build = {"id": "b1", "name": "base", "status": "queued", "started_at": "2026-11-30T00:00:00Z"}
    built = daemon.reply(200, {**facts, "digest": "sha256:1"})
    daemon.on("GET /v1/templates/ubuntu", daemon.reply(200, {**facts, "is_built": False}), built)
    daemon.on("GET /v1/templates/base", built)
    daemon.on("POST /v1/templates/build", daemon.reply(202, build))
    daemon.on(
        "GET /v1/templates/builds/b1/logs",
        daemon.events(("line", {"line": "step 1"}), ("done", {"build": {**build, "status": "done"}})),
    )
    lines: list[str] = []
    async with AsyncClient(daemon.url) as client:
        assert (await client.templates.ensure("ubuntu", on_line=lines.append)).digest == "sha256:1"
        assert (await client.templates.ensure("ubuntu", on_line=lines.append)).digest == "sha256:1"
    assert lines == ["step 1"]
    assert [seen.body for seen in daemon.seen if seen.method == "POST"] == [b"name=base"]


async def test_a_build_that_fails_shows_the_end_of_its_log(daemon: Any) -> None:
    facts = {"name": "base", "digest": "", "cpu": 1, "memory_mb": 512, "disk_mb": 512, "is_built": False}
    build = {"id": "b1", "name": "base", "status": "queued", "started_at": "2026-11-30T00:00:00Z"}
    failed = {**build, "status": "failed", "error": "apt failed"}
    daemon.on("GET /v1/templates/base", daemon.reply(200, facts))
    daemon.on("POST /v1/templates/build", daemon.reply(202, build))
    daemon.on(
        "GET /v1/templates/builds/b1/logs",
        daemon.events(("line", {"line": "no space"}), ("done", {"build": failed})),
    )
    async with AsyncClient(daemon.url) as client:
        with pytest.raises(TemplateBuildError, match="apt failed") as caught:
            await client.templates.ensure("base")
    assert caught.value.details["log_tail"] == "no space"
