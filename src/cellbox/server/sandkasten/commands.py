"""Commands of a session: one after another, in its one shell."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from typing import Any

from cellbox import errors
from cellbox.control.sandbox import LiveSandbox
from cellbox.control.shells import MAIN
from cellbox.protocol.operation import Operation
from cellbox.protocol.operations import NoneType
from cellbox.protocol.shells import RunInShell, ShellOutput, ShellResult
from cellbox.server.answers import TimedOutError
from cellbox.server.call import Answer, Call
from cellbox.server.routing import Handlers
from cellbox.server.sandkasten import values
from cellbox.server.sandkasten.faults import render_error
from cellbox.server.sandkasten.sessions import SESSION, session_of
from cellbox.server.streams import EventStream, closing

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
"""What colours and moves the cursor of a terminal (ECMA-48): control sequences, strings, and single escapes."""

handlers = Handlers(render_error)


@handlers.handles(
    Operation(
        name="sandkasten_exec",
        method="POST",
        path=f"{SESSION}/exec",
        summary="Run a command in a session's shell.",
        body=values.RunCommand,
        result=values.CommandResult,
    )
)
async def run_command(call: Call[values.RunCommand]) -> values.CommandResult:
    request = _checked(call.body)
    session = session_of(call)
    with call.cancelled_on_disconnect():
        result = await session.shells.run(MAIN, request)
    if result.reason in ("timeout", "idle_timeout"):
        raise _timed_out(request, {"output": result.output, "state_kept": result.state_kept, "cwd": result.cwd})
    session.keep_alive()
    return values.CommandResult(
        exit_code=result.exit_code,
        cwd=result.cwd,
        output=_told(result, raw=request.terminal),
        truncated=result.dropped_bytes > 0,
        duration_ms=round(result.duration_ms),
    )


@handlers.handles(
    Operation(
        name="sandkasten_exec_stream",
        method="POST",
        path=f"{SESSION}/exec/stream",
        summary="Run a command in a session's shell and stream what it prints.",
        body=values.RunCommand,
        result=NoneType,
    )
)
async def stream_command(call: Call[values.RunCommand]) -> Answer:
    return EventStream(call, _events(call, _checked(call.body)), terminal=(values.CommandEnd, values.StreamError))


async def _events(call: Call[values.RunCommand], request: RunInShell) -> AsyncIterator[Any]:
    """From here on this wire tells every failure in the stream."""
    try:
        session = session_of(call)
        async for event in _run(session, request):
            yield event
        session.keep_alive()
    except (errors.APIError, TimedOutError) as error:
        yield values.StreamError(error=error.message)


async def _run(session: LiveSandbox, request: RunInShell) -> AsyncIterator[Any]:
    cleaner = None if request.terminal else _Cleaner()
    async with closing(session.shells.stream(MAIN, request)) as events:
        async for event in events:
            if isinstance(event, ShellOutput):
                if text := event.chunk if cleaner is None else cleaner.feed(event.chunk):
                    yield values.OutputChunk(chunk=text, timestamp=time.time_ns() // 1_000_000)
            elif event.reason in ("timeout", "idle_timeout"):
                raise _timed_out(request, {})
            else:
                if cleaner is not None and (rest := cleaner.end()):
                    yield values.OutputChunk(chunk=rest, timestamp=time.time_ns() // 1_000_000)
                yield values.CommandEnd(exit_code=event.exit_code, cwd=event.cwd, duration_ms=round(event.duration_ms))


def _checked(body: values.RunCommand) -> RunInShell:
    if not body.cmd:
        raise errors.InvalidRequestError("cmd is required")
    size = len(body.cmd.encode(errors="surrogatepass"))
    if size > values.MAX_COMMAND_BYTES:
        raise errors.InvalidRequestError(
            f"cmd is too large ({size} bytes), max is {values.MAX_COMMAND_BYTES} bytes",
            details={
                "cmd_bytes": size,
                "max_cmd_bytes": values.MAX_COMMAND_BYTES,
                "recommendation": "write it to a file and run that",
            },
        )
    timeout_ms = body.timeout_ms or 0
    if timeout_ms < 0:
        raise errors.InvalidRequestError("timeout_ms must be non-negative")
    if timeout_ms > values.MAX_TIMEOUT_MS:
        raise errors.InvalidRequestError(f"timeout_ms must not exceed {values.MAX_TIMEOUT_MS} (10 minutes)")
    seconds = (timeout_ms or values.DEFAULT_TIMEOUT_MS) / 1000
    return RunInShell(cmd=body.cmd, timeout_seconds=seconds, terminal=body.raw_output)


def _timed_out(request: RunInShell, details: dict[str, Any]) -> TimedOutError:
    what = f"command timeout: the command was stopped after {request.timeout_seconds:g}s; the session goes on"
    return TimedOutError("command_timeout", what, details)


def _told(result: ShellResult, *, raw: bool) -> str:
    if raw:
        return result.output
    cleaner = _Cleaner()
    return cleaner.feed(result.output) + cleaner.end()


class _Cleaner:
    """Takes out what only a terminal understands: escape sequences and carriage returns."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        # A sequence may be split over two chunks: its beginning waits for the rest, but not for ever.
        start = text.rfind("\x1b")
        if start >= 0 and len(text) - start < 256 and not _ESCAPES.fullmatch(text, start):
            match = _ESCAPES.match(text, start)
            if match is None or match.end() == len(text):
                text, self._held = text[:start], text[start:]
            else:
                self._held = ""
        else:
            self._held = ""
        return _ESCAPES.sub("", text).replace("\r", "")

    def end(self) -> str:
        held, self._held = self._held, ""
        return _ESCAPES.sub("", held).replace("\r", "")
