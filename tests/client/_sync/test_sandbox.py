"""Sandboxes, commands and code contexts against a scripted server."""

from __future__ import annotations

from typing import Any

import pytest

from cellbox import (
    Client,
    Sandbox,
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


def test_create_run_and_kill(daemon: Any) -> None:
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
    client = Client(daemon.url, "pds_x")
    with client, client.sandboxes.create(ttl_seconds=60, metadata={"a": "b"}) as sandbox:
        assert (sandbox.id, sandbox.boot_mode, sandbox.status) == ("sb-1", "snapshot", "running")
        context = sandbox.create_code_context()
        execution = context.run_code("1 + 1", timeout_seconds=5)
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


def test_persistent_sandbox_outlives_the_block(daemon: Any) -> None:
    daemon.on("POST /v1/sandboxes", daemon.reply(201, {**daemon.sandbox, "persistent": True}))
    with Client(daemon.url) as client, client.sandboxes.create(persistent=True):
        pass
    assert daemon.server.targets("DELETE") == []


def test_kill_of_a_gone_sandbox_is_fine_but_using_it_is_not(daemon: Any) -> None:
    gone = daemon.reply(404, {"error": "sandbox not found", "code": "sandbox_not_found", "request_id": "r1"})
    daemon.on("DELETE /v1/sandboxes/sb-1", gone)
    daemon.on(EXEC, gone)
    with Client(daemon.url) as client:
        sandbox = client.sandboxes.get("sb-1")
        sandbox.kill()
        with pytest.raises(SandboxNotFoundError) as caught:
            sandbox.exec("true")
    assert caught.value.request_id == "r1"


def test_failure_in_the_block_is_not_hidden_by_a_failing_kill(daemon: Any) -> None:
    daemon.on("DELETE /v1/sandboxes/sb-1", b"")
    with Client(daemon.url) as client:
        with pytest.raises(KeyError):
            with client.sandboxes.create():
                raise KeyError("mine")


def test_create_waits_for_room(daemon: Any) -> None:
    full = daemon.reply(503, {"error": "no compute capacity available", "code": "no_capacity"}, Retry_After="0.01")
    daemon.on("POST /v1/sandboxes", full, daemon.reply(201, daemon.sandbox))
    with Client(daemon.url) as client:
        assert (client.sandboxes.create()).id == "sb-1"
        daemon.on("POST /v1/sandboxes", full)
        with pytest.raises(CapacityError) as caught:
            client.sandboxes.create(retry_seconds=0)
    assert caught.value.retry_after_seconds == 0.01


def test_command_that_fails_is_a_result(daemon: Any) -> None:
    daemon.on(EXEC, daemon.reply(200, {**DONE, "exit_code": 3, "stderr": "no such thing"}))
    with Client(daemon.url) as client:
        sandbox = client.sandboxes.get("sb-1")
        assert (sandbox.exec("false")).exit_code == 3
        assert (sandbox.commands.run("false", 5)).stdout == "hi\n"
        with pytest.raises(CommandFailedError, match="exited with 3: false\nno such thing") as caught:
            sandbox.exec("false", check=True)
    assert caught.value.result.stdout == "hi\n"


def test_command_out_of_time_keeps_what_it_printed(daemon: Any) -> None:
    partial = {"stdout": "begin\n", "stderr": "", "exit_code": 137, "reason": "timeout"}
    error = {"error": "command timeout after 2s", "code": "command_timeout", "details": {"result": partial}}
    daemon.on(EXEC, daemon.reply(500, error))
    with Client(daemon.url) as client:
        sandbox = client.sandboxes.get("sb-1")
        result = sandbox.exec("echo begin; sleep 100", timeout_seconds=2)
        assert (result.reason, result.stdout) == ("timeout", "begin\n")
        with pytest.raises(CommandFailedError, match=r"stopped \(timeout\)"):
            sandbox.exec("echo begin; sleep 100", timeout_seconds=2, check=True)


def test_cell_out_of_time_is_a_result(daemon: Any) -> None:
    partial = {"stdout": "begin\n", "error": "The cell ran out of time.", "outcome": "interrupted"}
    error = {"error": "cell timeout after 1s", "code": "cell_timeout", "details": {"execution": partial}}
    daemon.on(daemon.run, daemon.reply(500, error))
    with Client(daemon.url) as client:
        sandbox = client.sandboxes.get("sb-1")
        execution = (sandbox.create_code_context()).run_code("while True: pass", timeout_seconds=1)
    assert execution.timed_out
    assert execution.state_kept
    assert execution.stdout == "begin\n"
    with pytest.raises(CodeFailedError, match="out of time"):
        execution.raise_for_error()


def test_command_stream(daemon: Any) -> None:
    daemon.on(
        EXEC + "/stream",
        daemon.events(("stdout", {"chunk": "é☃\u2028😀\n"}), ("news", {}), ("exit", {"exit_code": 0})),
    )
    with Client(daemon.url) as client:
        sandbox = client.sandboxes.get("sb-1")
        got = [event for event in sandbox.exec_stream("x")]
    assert got == [StdoutChunk(chunk="é☃\u2028😀\n"), CommandExited(exit_code=0)]


@pytest.mark.parametrize("ends", [True, False])
def test_stream_without_its_last_event_is_an_error(daemon: Any, ends: bool) -> None:
    daemon.on(EXEC + "/stream", daemon.events(("stdout", {"chunk": "a"}), ends=ends))
    with Client(daemon.url) as client:
        sandbox = client.sandboxes.get("sb-1")
        events = sandbox.exec_stream("x")
        assert next(events) == StdoutChunk(chunk="a")
        with pytest.raises(ConnectionLostError):
            next(events)


def test_stream_that_times_out_ends_with_that(daemon: Any) -> None:
    partial = {"stdout": "a", "stderr": "", "exit_code": 137, "reason": "timeout"}
    failed = {"error": "command timeout after 2s", "code": "command_timeout", "details": {"result": partial}}
    daemon.on(EXEC + "/stream", daemon.events(("stdout", {"chunk": "a"}), ("error", failed)))
    with Client(daemon.url) as client:
        sandbox = client.sandboxes.get("sb-1")
        got = [event for event in sandbox.exec_stream("x")]
    assert got[-1] == CommandExited(exit_code=137, reason="timeout")


def test_stream_left_early_closes_its_connection(daemon: Any) -> None:
    endless = daemon.events(*[("stdout", {"chunk": "a"})] * 3)[:2]
    daemon.on(EXEC + "/stream", endless)
    with Client(daemon.url) as client:
        sandbox = client.sandboxes.get("sb-1")
        with sandbox.exec_stream("yes") as events:
            for _ in events:
                break
        sandbox.refresh()
    assert daemon.seen[-1].connection == 2


def test_error_before_the_stream(daemon: Any) -> None:
    daemon.on(EXEC + "/stream", daemon.reply(404, {"error": "gone", "code": "sandbox_not_found"}))
    with Client(daemon.url) as client:
        sandbox = client.sandboxes.get("sb-1")
        with pytest.raises(SandboxNotFoundError):
            next(sandbox.exec_stream("x"))


def test_cell_with_callbacks(daemon: Any) -> None:
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
    with Client(daemon.url) as client:
        context = (client.sandboxes.get("sb-1")).create_code_context()
        execution = context.run_code("x", on_stdout=out.append)
        kinds = [type(event).__name__ for event in context.stream("x")]
    assert out == ["a", "b"]
    assert (execution.stdout, execution.stderr, execution.text) == ("ab", "w", "42")
    assert kinds == ["StdoutChunk", "StderrChunk", "CellDisplay", "StdoutChunk", "CellEnded"]


def test_default_context_is_made_once_and_never_replaced_in_silence(daemon: Any) -> None:
    daemon.on(daemon.run, daemon.reply(200, {"stdout": "a"}))
    create = "POST /v1/sandboxes/sb-1/repl/sessions"
    with Client(daemon.url) as client:
        sandbox = client.sandboxes.get("sb-1")
        sandbox.run_code("1")
        sandbox.run_code("2")
        assert daemon.server.targets("POST").count(create.split()[1]) == 1
        daemon.on(daemon.run, daemon.reply(404, {"error": "gone", "code": "context_not_found"}))
        with pytest.raises(ContextNotFoundError):
            sandbox.run_code("3")
        daemon.on(daemon.run, daemon.reply(200, {"stdout": "b"}))
        assert (sandbox.run_code("4")).stdout == "b"
    assert daemon.server.targets("POST").count(create.split()[1]) == 2


def test_contexts_can_be_found_again(daemon: Any) -> None:
    with Client(daemon.url) as client:
        sandbox = client.sandboxes.get("sb-1")
        assert [context.id for context in sandbox.contexts()] == ["ctx-1"]
        assert (sandbox.get_code_context("ctx-1")).id == "ctx-1"
        with pytest.raises(ContextNotFoundError):
            sandbox.get_code_context("ctx-2")


def test_default_client_comes_from_the_environment(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from cellbox.client import _default

    monkeypatch.setattr(_default, "_client", None)
    monkeypatch.setenv("CELLBOX_API_URL", daemon.url)
    monkeypatch.setenv("CELLBOX_API_KEY", "pds_env")
    sandbox = Sandbox.create()
    sandbox.kill()
    assert daemon.seen[0].headers["authorization"] == "Bearer pds_env"
    (_default.default_client()).close()


def test_languages(daemon: Any) -> None:
    daemon.on("GET /v1/sandboxes/sb-1/repl/languages", daemon.reply(200, ["python", "bash"]))
    with Client(daemon.url) as client:
        sandbox = client.sandboxes.get("sb-1")
        assert sandbox.languages() == ["python", "bash"]

# Generated from _async/test_sandbox.py by tools/unasync.py: edit that, and run it again.
