"""Sandboxes, commands and code contexts against a scripted server."""

from __future__ import annotations

from typing import Any

import pytest

from cellbox import (
    AsyncClient,
    AsyncSandbox,
    CapacityError,
    CodeFailedError,
    CommandExited,
    CommandFailedError,
    ConnectionLostError,
    ContextNotFoundError,
    SandboxNotFoundError,
    StdoutChunk,
)

EXEC = "POST /v1/sandboxes/sb-1/exec"
DONE = {"stdout": "hi\n", "stderr": "", "exit_code": 0, "reason": "exited"}


async def test_create_run_and_kill(daemon: Any) -> None:
    daemon.on(
        daemon.run,
        daemon.reply(
            200,
            {
                "stdout": "a",
                "results": [{"text/plain": "fig", "image/png": "aGk="}, {"text/plain": "2", "text/html": "<b>2</b>"}],
                "result_info": [{"chart": '{"kind": "line"}'}, {"is_main": True}],
                "execution_count": 3,
            },
        ),
    )
    client = AsyncClient(daemon.url, "pds_x")
    async with client, await client.sandboxes.create(ttl_seconds=60, metadata={"a": "b"}) as sandbox:
        assert (sandbox.id, sandbox.boot_mode, sandbox.status) == ("sb-1", "snapshot", "running")
        context = await sandbox.create_code_context()
        execution = await context.run_code("1 + 1", timeout_seconds=5)
    assert execution.text == "2"
    assert execution.png == "aGk="
    assert execution.results[0].chart == {"kind": "line"}
    assert execution.results[1].html == "<b>2</b>"
    assert execution.logs == {"stdout": "a", "stderr": ""}
    assert (execution.error, execution.timed_out, execution.execution_count) == (None, False, 3)
    assert daemon.seen[0].headers["authorization"] == "Bearer pds_x"
    assert daemon.seen[0].json["metadata"] == {"a": "b"}
    assert daemon.seen[2].json == {
        "code": "1 + 1",
        "timeout_ms": None,
        "timeout_seconds": 5.0,
        "env": {},
        "on_disconnect": "interrupt",
    }
    assert [seen.method for seen in daemon.seen] == ["POST", "POST", "POST", "DELETE"]
    assert {seen.connection for seen in daemon.seen} == {1}


async def test_persistent_sandbox_outlives_the_block(daemon: Any) -> None:
    daemon.on("POST /v1/sandboxes", daemon.reply(201, {**daemon.sandbox, "persistent": True}))
    async with AsyncClient(daemon.url) as client, await client.sandboxes.create(persistent=True):
        pass
    assert daemon.server.targets("DELETE") == []


async def test_kill_of_a_gone_sandbox_is_fine_but_using_it_is_not(daemon: Any) -> None:
    gone = daemon.reply(404, {"error": "sandbox not found", "code": "sandbox_not_found", "request_id": "r1"})
    daemon.on("DELETE /v1/sandboxes/sb-1", gone)
    daemon.on(EXEC, gone)
    async with AsyncClient(daemon.url) as client:
        sandbox = await client.sandboxes.get("sb-1")
        await sandbox.kill()
        with pytest.raises(SandboxNotFoundError) as caught:
            await sandbox.exec("true")
    assert caught.value.request_id == "r1"


async def test_failure_in_the_block_is_not_hidden_by_a_failing_kill(daemon: Any) -> None:
    daemon.on("DELETE /v1/sandboxes/sb-1", b"")
    async with AsyncClient(daemon.url) as client:
        with pytest.raises(KeyError):
            async with await client.sandboxes.create():
                raise KeyError("mine")


async def test_create_waits_for_room(daemon: Any) -> None:
    full = daemon.reply(503, {"error": "no compute capacity available", "code": "no_capacity"}, Retry_After="0.01")
    daemon.on("POST /v1/sandboxes", full, daemon.reply(201, daemon.sandbox))
    async with AsyncClient(daemon.url) as client:
        assert (await client.sandboxes.create()).id == "sb-1"
        daemon.on("POST /v1/sandboxes", full)
        with pytest.raises(CapacityError) as caught:
            await client.sandboxes.create(retry_seconds=0)
    assert caught.value.retry_after_seconds == 0.01


async def test_command_that_fails_is_a_result(daemon: Any) -> None:
    daemon.on(EXEC, daemon.reply(200, {**DONE, "exit_code": 3, "stderr": "no such thing"}))
    async with AsyncClient(daemon.url) as client:
        sandbox = await client.sandboxes.get("sb-1")
        assert (await sandbox.exec("false")).exit_code == 3
        assert (await sandbox.commands.run("false", 5)).stdout == "hi\n"
        with pytest.raises(CommandFailedError, match="exited with 3: false\nno such thing") as caught:
            await sandbox.exec("false", check=True)
    assert caught.value.result.stdout == "hi\n"


async def test_command_out_of_time_keeps_what_it_printed(daemon: Any) -> None:
    partial = {"stdout": "begin\n", "stderr": "", "exit_code": 137, "reason": "timeout"}
    error = {"error": "command timeout after 2s", "code": "command_timeout", "details": {"result": partial}}
    daemon.on(EXEC, daemon.reply(500, error))
    async with AsyncClient(daemon.url) as client:
        sandbox = await client.sandboxes.get("sb-1")
        result = await sandbox.exec("echo begin; sleep 100", timeout_seconds=2)
        assert (result.reason, result.stdout) == ("timeout", "begin\n")
        with pytest.raises(CommandFailedError, match=r"stopped \(timeout\)"):
            await sandbox.exec("echo begin; sleep 100", timeout_seconds=2, check=True)


async def test_cell_out_of_time_is_a_result(daemon: Any) -> None:
    partial = {"stdout": "begin\n", "error": "The cell ran out of time.", "outcome": "interrupted"}
    error = {"error": "cell timeout after 1s", "code": "cell_timeout", "details": {"execution": partial}}
    daemon.on(daemon.run, daemon.reply(500, error))
    async with AsyncClient(daemon.url) as client:
        sandbox = await client.sandboxes.get("sb-1")
        execution = await (await sandbox.create_code_context()).run_code("while True: pass", timeout_seconds=1)
    assert execution.timed_out
    assert execution.state_kept
    assert execution.stdout == "begin\n"
    with pytest.raises(CodeFailedError, match="out of time"):
        execution.raise_for_error()


async def test_command_stream(daemon: Any) -> None:
    daemon.on(
        EXEC + "/stream",
        daemon.events(("stdout", {"chunk": "é☃\u2028😀\n"}), ("news", {}), ("exit", {"exit_code": 0})),
    )
    async with AsyncClient(daemon.url) as client:
        sandbox = await client.sandboxes.get("sb-1")
        got = [event async for event in sandbox.exec_stream("x")]
    assert got == [StdoutChunk(chunk="é☃\u2028😀\n"), CommandExited(exit_code=0)]


@pytest.mark.parametrize("ends", [True, False])
async def test_stream_without_its_last_event_is_an_error(daemon: Any, ends: bool) -> None:
    daemon.on(EXEC + "/stream", daemon.events(("stdout", {"chunk": "a"}), ends=ends))
    async with AsyncClient(daemon.url) as client:
        sandbox = await client.sandboxes.get("sb-1")
        events = sandbox.exec_stream("x")
        assert await anext(events) == StdoutChunk(chunk="a")
        with pytest.raises(ConnectionLostError):
            await anext(events)


async def test_stream_that_times_out_ends_with_that(daemon: Any) -> None:
    partial = {"stdout": "a", "stderr": "", "exit_code": 137, "reason": "timeout"}
    failed = {"error": "command timeout after 2s", "code": "command_timeout", "details": {"result": partial}}
    daemon.on(EXEC + "/stream", daemon.events(("stdout", {"chunk": "a"}), ("error", failed)))
    async with AsyncClient(daemon.url) as client:
        sandbox = await client.sandboxes.get("sb-1")
        got = [event async for event in sandbox.exec_stream("x")]
    assert got[-1] == CommandExited(exit_code=137, reason="timeout")


async def test_stream_left_early_closes_its_connection(daemon: Any) -> None:
    endless = daemon.events(*[("stdout", {"chunk": "a"})] * 3)[:2]
    daemon.on(EXEC + "/stream", endless)
    async with AsyncClient(daemon.url) as client:
        sandbox = await client.sandboxes.get("sb-1")
        async with sandbox.exec_stream("yes") as events:
            async for _ in events:
                break
        await sandbox.refresh()
    assert daemon.seen[-1].connection == 2


async def test_error_before_the_stream(daemon: Any) -> None:
    daemon.on(EXEC + "/stream", daemon.reply(404, {"error": "gone", "code": "sandbox_not_found"}))
    async with AsyncClient(daemon.url) as client:
        sandbox = await client.sandboxes.get("sb-1")
        with pytest.raises(SandboxNotFoundError):
            await anext(sandbox.exec_stream("x"))


async def test_cell_with_callbacks(daemon: Any) -> None:
    daemon.on(
        daemon.run + "/stream",
        daemon.events(
            ("stdout", {"chunk": "a"}),
            ("stderr", {"chunk": "w"}),
            ("display", {"data": {"text/plain": "42"}, "info": {"is_main": True}}),
            ("stdout", {"chunk": "b"}),
            ("done", {"execution": {"exit": 0, "execution_count": 1, "duration_ms": 2}}),
        ),
    )
    out: list[str] = []
    async with AsyncClient(daemon.url) as client:
        context = await (await client.sandboxes.get("sb-1")).create_code_context()
        execution = await context.run_code("x", on_stdout=out.append)
        kinds = [type(event).__name__ async for event in context.stream("x")]
    assert out == ["a", "b"]
    assert (execution.stdout, execution.stderr, execution.text) == ("ab", "w", "42")
    assert kinds == ["StdoutChunk", "StderrChunk", "CellDisplay", "StdoutChunk", "CellEnded"]


async def test_default_context_is_made_once_and_never_replaced_in_silence(daemon: Any) -> None:
    daemon.on(daemon.run, daemon.reply(200, {"stdout": "a"}))
    create = "POST /v1/sandboxes/sb-1/repl/sessions"
    async with AsyncClient(daemon.url) as client:
        sandbox = await client.sandboxes.get("sb-1")
        await sandbox.run_code("1")
        await sandbox.run_code("2")
        assert daemon.server.targets("POST").count(create.split()[1]) == 1
        daemon.on(daemon.run, daemon.reply(404, {"error": "gone", "code": "context_not_found"}))
        with pytest.raises(ContextNotFoundError):
            await sandbox.run_code("3")
        daemon.on(daemon.run, daemon.reply(200, {"stdout": "b"}))
        assert (await sandbox.run_code("4")).stdout == "b"
    assert daemon.server.targets("POST").count(create.split()[1]) == 2


async def test_contexts_can_be_found_again(daemon: Any) -> None:
    async with AsyncClient(daemon.url) as client:
        sandbox = await client.sandboxes.get("sb-1")
        assert [context.id for context in await sandbox.contexts()] == ["ctx-1"]
        assert (await sandbox.get_code_context("ctx-1")).id == "ctx-1"
        with pytest.raises(ContextNotFoundError):
            await sandbox.get_code_context("ctx-2")


async def test_default_client_comes_from_the_environment(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from cellbox.client import _default

    monkeypatch.setattr(_default, "_client", None)
    monkeypatch.setenv("CELLBOX_API_URL", daemon.url)
    monkeypatch.setenv("CELLBOX_API_KEY", "pds_env")
    sandbox = await AsyncSandbox.create()
    await sandbox.kill()
    assert daemon.seen[0].headers["authorization"] == "Bearer pds_env"
    await (await _default.async_default_client()).aclose()


async def test_languages(daemon: Any) -> None:
    daemon.on("GET /v1/sandboxes/sb-1/repl/languages", daemon.reply(200, ["python", "bash"]))
    async with AsyncClient(daemon.url) as client:
        sandbox = await client.sandboxes.get("sb-1")
        assert await sandbox.languages() == ["python", "bash"]
