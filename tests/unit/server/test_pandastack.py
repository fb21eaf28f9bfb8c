"""The unmodified PandaStack client, over a real socket, through everything it can do with sandboxes."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import Any

import pandastack
import pytest
from pandastack import exceptions

from cellbox import errors
from cellbox.control.settings import Settings


@pytest.fixture
def client(server: Any) -> pandastack.Client:
    return server.pandastack()


@pytest.fixture
def sandbox(client: pandastack.Client) -> pandastack.Sandbox:
    return client.sandboxes.create(template="code-interpreter", ttl_seconds=1800, metadata={"session": "s1"})


def test_me_and_a_wrong_key(server: Any, client: pandastack.Client) -> None:
    assert client.me()["user_id"] == "admin"
    with pytest.raises(exceptions.AuthError, match="unauthorized"):
        server.pandastack(key="pds_" + "f" * 32).me()


def test_the_life_of_a_sandbox(client: pandastack.Client, sandbox: pandastack.Sandbox) -> None:
    assert (sandbox.template, sandbox.metadata, sandbox.status) == ("code-interpreter", {"session": "s1"}, "running")
    assert [row.id for row in client.sandboxes.list()] == [sandbox.id]
    assert client.sandboxes.get(sandbox.id).id == sandbox.id
    sandbox.kill()
    sandbox.kill()  # gentler than a 404: the caller's own, killed a moment ago
    assert client.sandboxes.list() == []
    with pytest.raises(exceptions.NotFoundError):
        client.sandboxes.get(sandbox.id)


def test_exec(sandbox: pandastack.Sandbox) -> None:
    result = sandbox.exec("echo héllo ☃")
    assert (result.stdout, result.exit_code) == ("héllo ☃\n", 0)
    assert sandbox.exec("false", check=False).exit_code == 1
    with pytest.raises(exceptions.SandboxTimeout):
        sandbox.exec("sleep 5", timeout_seconds=0.2)


def test_a_fault_of_the_server_is_told_without_details(sandbox: pandastack.Sandbox) -> None:
    started = time.monotonic()
    with pytest.raises(exceptions.ServerError, match="internal error") as caught:
        sandbox.exec("fail")
    assert "secret" not in str(caught.value)
    assert "refused" not in str(caught.value)
    assert time.monotonic() - started < 3  # not taken for a sandbox that is still warming up


@pytest.mark.parametrize("text", ["a", "héllo", "☃", "x\x85y", "a\u2028b", "😀", "\x1e\x0b", ""])
def test_exec_stream_brings_every_character_through(sandbox: pandastack.Sandbox, text: str) -> None:
    chunks: list[str] = []
    assert sandbox.exec_stream(f"echo {text}", on_stdout=chunks.append) == 0
    assert chunks == [text]


def test_exec_stream_failures(sandbox: pandastack.Sandbox) -> None:
    assert sandbox.exec_stream("false") == 1
    with pytest.raises(exceptions.SandboxTimeout, match="command timeout after"):
        sandbox.exec_stream("sleep 5", timeout_seconds=0.7)
    with pytest.raises(exceptions.BadRequestError, match="not running"):
        sandbox.exec_stream("fail")
    with pytest.raises(exceptions.ServerError, match="the guest died"):
        sandbox.exec_stream("die")


def test_code_contexts(sandbox: pandastack.Sandbox) -> None:
    context = sandbox.create_code_context(language="python")
    assert context.run_code("print(hi)").stdout == "hi\n"
    assert context.run_code("x+1").text == "x+1"
    assert "ValueError" in str(context.run_code("raise").error)
    with pytest.raises(exceptions.SandboxTimeout):
        context.run_code("sleep(5)", timeout_seconds=0.2)
    context.close()
    with pytest.raises(exceptions.NotFoundError):
        context.run_code("1")


def test_files(sandbox: pandastack.Sandbox, tmp_path: Path) -> None:
    filesystem = sandbox.filesystem
    content = bytes(range(256)) * 4096
    local = tmp_path / "local.bin"
    local.write_bytes(content)
    filesystem.upload(str(local), "/workspace/ä b+c&d.bin")
    assert filesystem.read("/workspace/ä b+c&d.bin") == content
    filesystem.download("/workspace/ä b+c&d.bin", str(tmp_path / "back.bin"))
    assert (tmp_path / "back.bin").read_bytes() == content
    filesystem.write("/workspace/empty", b"")
    assert sorted(entry.name for entry in filesystem.listdir("/workspace")) == ["empty", "ä b+c&d.bin"]
    assert filesystem.exists("/workspace/empty")
    assert not filesystem.exists("/workspace/nope")
    with pytest.raises(exceptions.BadRequestError, match="absolute"):
        filesystem.write("relative", b"")


def test_logs(server: Any, sandbox: pandastack.Sandbox) -> None:
    log = server.control.sandboxes.find("admin", sandbox.id).log
    server.call(lambda: (log.say("héllo"), log.say("two")))
    assert list(sandbox.logs()) == ["[cellbox] héllo", "[cellbox] two"]
    followed = sandbox.logs(follow=True)
    assert [next(followed), next(followed)] == ["[cellbox] héllo", "[cellbox] two"]
    server.call(log.close)
    assert list(followed) == []


def test_lifecycle(client: pandastack.Client, sandbox: pandastack.Sandbox) -> None:
    assert sandbox.set_ttl(60)["ttl_seconds"] == 60
    assert sandbox.set_persistent(True)["persistent"] is True
    assert client.sandboxes.get(sandbox.id).persistent is True


def test_tokens(server: Any, client: pandastack.Client) -> None:
    token = client.tokens.create("ci")
    assert server.pandastack(key=token.token).me()["user_id"] == "admin"
    assert token.prefix in {item.prefix for item in client.tokens.list()}
    client.tokens.revoke(token.prefix)
    with pytest.raises(exceptions.AuthError):
        server.pandastack(key=token.token).me()


def test_a_command_longer_than_the_clients_patience(start_server: Any) -> None:
    """35 s against 30 s in proportion: the client gives up after 0.5 s without a byte."""
    server = start_server(keepalive_seconds=0.2)
    sandbox = server.pandastack(timeout=0.5).sandboxes.create()
    assert sandbox.exec("sleep 0.9").exit_code == 0
    with pytest.raises(exceptions.SandboxTimeout):
        sandbox.exec("sleep 9", timeout_seconds=0.9)
    assert sandbox.create_code_context().run_code("sleep(0.9)").exit_code == 0
    assert sandbox.exec("echo and the connection is still in step").exit_code == 0


def test_signs_of_life_come_in_time_for_that_client() -> None:
    """It gives up after 30 s without a byte. A sign comes within two intervals."""
    patience = inspect.signature(pandastack.Client.__init__).parameters["timeout"].default
    assert 2 * Settings().keepalive_seconds < patience


def test_without_signs_of_life_that_client_would_give_up(start_server: Any) -> None:
    sandbox = start_server(keepalive_seconds=10.0).pandastack(timeout=0.3).sandboxes.create()
    with pytest.raises(exceptions.ConnectionError, match="timed out"):
        sandbox.exec("sleep 1")


def test_capacity_refusals_are_tried_again_and_quotas_are_not(server: Any) -> None:
    events: list[Any] = []
    client = server.pandastack(on_create_retry=events.append)
    server.control.sandboxes.refusal = errors.CapacityError("no room", retry_after_seconds=0.05)
    assert client.sandboxes.create().id
    assert [event.status_code for event in events] == [503]
    server.control.sandboxes.refusal = errors.QuotaExceededError("max sandboxes reached")
    with pytest.raises(exceptions.BadRequestError, match="max sandboxes"):
        client.sandboxes.create()
    assert len(events) == 1
