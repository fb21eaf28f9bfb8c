"""A sample of the public API that type checkers must accept, and infer exactly."""

from __future__ import annotations

from typing import assert_type

from cellbox import AsyncSandbox, CommandExited, CommandResult, Execution, Sandbox, StderrChunk, StdoutChunk


def blocking() -> None:
    with Sandbox.create(template="code-interpreter", ttl_seconds=600, metadata={"a": "b"}) as sandbox:
        assert_type(sandbox, Sandbox)
        assert_type(sandbox.exec("ls", check=True), CommandResult)
        context = sandbox.create_code_context()
        execution = context.run_code("1 + 1", timeout_seconds=5, on_stdout=print)
        assert_type(execution, Execution)
        assert_type(execution.text, str | None)
        assert_type(sandbox.filesystem.read(b"/x"), bytes)
        for event in sandbox.exec_stream("ls"):
            assert_type(event, StdoutChunk | StderrChunk | CommandExited)


async def asynchronous() -> None:
    async with await AsyncSandbox.create() as sandbox:
        assert_type(sandbox, AsyncSandbox)
        assert_type(await sandbox.run_code("1"), Execution)
        async for event in sandbox.exec_stream("ls"):
            assert_type(event, StdoutChunk | StderrChunk | CommandExited)
