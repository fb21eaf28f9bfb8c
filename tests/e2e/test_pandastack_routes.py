"""Every other route of the wire, through the unmodified `pandastack` client."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pandastack
import pytest
from pandastack.client import Client
from pandastack.exceptions import AuthError, BadRequestError, NotFoundError, PandastackError, SandboxTimeout

from .conftest import Daemon


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> Client:
    return Client(api_key=daemon.admin_key, api_url=daemon.url)


@pytest.fixture(scope="module")
def panda(client: Client) -> Iterator[pandastack.Sandbox]:
    with client.sandboxes.create(template="python", ttl_seconds=600, metadata={"a": "1"}) as sandbox:
        yield sandbox


def test_me_and_health(client: Client, daemon: Daemon) -> None:
    me = client.me()
    assert me["user_id"] == "admin"
    assert me["auth_method"] == "token"
    for path in ("/healthz", "/version", "/metrics"):
        with urllib.request.urlopen(daemon.url + path, timeout=10) as answer:
            assert answer.status == 200
            assert answer.headers["x-request-id"]
            assert answer.read()


def test_a_wrong_key_is_refused(daemon: Daemon) -> None:
    with pytest.raises(AuthError):
        Client(api_key="pds_" + "0" * 32, api_url=daemon.url).me()


def test_tokens_are_made_used_and_revoked(client: Client, daemon: Daemon) -> None:
    token = client.tokens.create("ci", expires_in_days=1)
    assert token.token is not None
    other = Client(api_key=token.token, api_url=daemon.url)
    assert other.me()["user_id"] == "admin"
    assert token.prefix in [known.prefix for known in client.tokens.list()]
    client.tokens.revoke(token.prefix)
    with pytest.raises(AuthError):
        other.me()


def test_rows(client: Client, panda: pandastack.Sandbox) -> None:
    row = client.sandboxes.get(panda.id)
    assert (row.template, row.status, row.metadata, row.persistent) == (
        "code-interpreter",
        "running",
        {"a": "1"},
        False,
    )
    assert panda.id in [listed.id for listed in client.sandboxes.list()]
    assert panda.refresh().boot_mode in {"snapshot", "cold"}
    assert panda.boot_ms > 0


def test_lifecycle(panda: pandastack.Sandbox) -> None:
    assert panda.set_ttl(500)["ttl_seconds"] == 500
    assert panda.set_persistent(True)["persistent"] is True
    assert panda.set_persistent(False)["persistent"] is False
    lifecycle = panda.lifecycle()
    assert lifecycle["ttl_seconds"] == 500
    assert lifecycle["idle_seconds"] >= 0
    with pytest.raises(BadRequestError):
        panda.set_ttl(-1)


def test_a_ttl_ends_a_sandbox_in_time(client: Client) -> None:
    sandbox = client.sandboxes.create(template="base", ttl_seconds=2)
    started = time.monotonic()
    assert sandbox.exec("echo alive").stdout == "alive\n"
    while time.monotonic() - started < 1.5:
        assert sandbox.id in [row.id for row in client.sandboxes.list()], "a sandbox never dies early"
        time.sleep(0.1)
    while sandbox.id in [row.id for row in client.sandboxes.list()]:
        assert time.monotonic() - started < 4, "a sandbox never lives more than two seconds late"
        time.sleep(0.1)
    with pytest.raises(NotFoundError):
        sandbox.exec("echo dead")


@pytest.mark.parametrize("ttl_seconds", [0, -1, 10**18, "60"])
def test_a_senseless_ttl_is_refused(client: Client, ttl_seconds: object) -> None:
    with pytest.raises(BadRequestError):
        client.sandboxes.create(template="base", ttl_seconds=ttl_seconds)


def test_an_unknown_template_is_refused_with_what_there_is(client: Client) -> None:
    with pytest.raises(BadRequestError, match="code-interpreter"):
        client.sandboxes.create(template="no-such-template")


def test_files(panda: pandastack.Sandbox, tmp_path: Path) -> None:
    files = panda.filesystem
    content = bytes(range(256)) * 1000
    assert files.write("/workspace/a/b/data.bin", content)["bytes"] == len(content)
    assert files.read("/workspace/a/b/data.bin") == content
    (tmp_path / "up").write_bytes(content)
    files.upload(tmp_path / "up", "/workspace/up")
    files.download("/workspace/up", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == content
    assert files.exists("/workspace/a/b")
    assert not files.exists("/workspace/nope")
    info = files.stat("/workspace/a/b/data.bin")
    assert (info.name, info.is_dir, info.size) == ("data.bin", False, len(content))
    assert abs(info.mtime - time.time()) < 60
    panda.exec("ln -s /workspace/a /workspace/link")
    entries = {entry.name: entry for entry in files.listdir("/workspace")}
    assert entries["a"].is_dir
    assert not entries["link"].is_dir, "a link is never descended into"
    walked = {folder: [found.name for found in names] for folder, _, names in files.walk("/workspace/a")}
    assert walked == {"/workspace/a": [], "/workspace/a/b": ["data.bin"]}
    for attempt in (files.read, files.stat, files.listdir):
        with pytest.raises(NotFoundError):
            attempt("/workspace/nope")
    with pytest.raises(BadRequestError):
        files.write("/workspace/a", b"a directory is in the way")
    with pytest.raises(BadRequestError):
        files.read("relative/path")


def test_logs(panda: pandastack.Sandbox) -> None:
    assert isinstance(list(panda.logs()), list)


def test_templates(client: Client) -> None:
    names = {template.name for template in client.templates.list()}
    assert {"base", "code-interpreter"} <= names
    template = client.templates.get("code-interpreter")
    assert template.memory_mb > 0


def test_a_context_is_closed_and_unknown_after(panda: pandastack.Sandbox) -> None:
    context = panda.create_code_context()
    context.close()
    with pytest.raises(NotFoundError):
        context.run_code("1")
    with pytest.raises(BadRequestError):
        panda.create_code_context(language="cobol")


def test_contexts_do_not_share_state(panda: pandastack.Sandbox) -> None:
    with panda.create_code_context() as one, panda.create_code_context() as two:
        one.run_code("x = 1")
        assert "NameError" in (two.run_code("x").error or "")
        with pytest.raises(SandboxTimeout):
            one.run_code("import time; time.sleep(60)", timeout_seconds=1)
        assert two.run_code("2").text == "2"
        assert one.run_code("x").text == "1"


def test_volumes(client: Client) -> None:
    volume = client.volumes.create("panda-data", size_mb=32)
    assert (volume["name"], volume["size_mb"]) == ("panda-data", 32)
    with pytest.raises(PandastackError, match="volume already exists"):
        client.volumes.create("panda-data", size_mb=32)
    assert "panda-data" in [one["name"] for one in client.volumes.list()]
    writer = client.sandboxes.create(template="base", ttl_seconds=300, volumes=[{"name": "panda-data"}])
    assert writer.exec("echo kept > /volumes/panda-data/f").exit_code == 0
    with pytest.raises(PandastackError, match="in use"):
        client.volumes.delete("panda-data")
    writer.kill()
    reader = client.sandboxes.create(
        template="base", ttl_seconds=300, volumes=[{"name": "panda-data", "read_only": True}]
    )
    assert reader.exec("cat /volumes/panda-data/f; echo x > /volumes/panda-data/f || echo refused").stdout == (
        "kept\nrefused\n"
    )
    reader.kill()
    client.volumes.delete("panda-data")
    with pytest.raises(NotFoundError):
        client.volumes.get("panda-data")
    with pytest.raises(BadRequestError, match="not found"):
        client.sandboxes.create(template="base", volumes=[{"name": "panda-data"}])
