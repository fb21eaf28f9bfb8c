"""Commands: run one and wait, or stream what it prints."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from cellbox import errors
from cellbox.control.guest import Guest
from cellbox.control.link import Call, Data, GuestLink
from cellbox.control.output import ClippedOutput, TextChunks
from cellbox.protocol.commands import (
    DEFAULT_COMMAND_TIMEOUT_SECONDS,
    CommandEvent,
    CommandExited,
    CommandResult,
    RunCommand,
    StderrChunk,
    StdoutChunk,
)
from cellbox.protocol.contexts import RunOnce, RunOnceResult
from cellbox.wire.frames import DataChannel
from cellbox.wire.messages import Exec, Exited

GRACE_SECONDS = 15.0
"""What the guest gets beyond a deadline that it enforces itself, before the host gives up on its answer."""
_INTERPRETERS = {
    "python": "python3 -",
    "py": "python3 -",
    "python3": "python3 -",
    "bash": "bash -s",
    "sh": "sh -s",
    "shell": "sh -s",
    "node": "node -",
    "js": "node -",
    "javascript": "node -",
    "ruby": "ruby -",
}


class Commands:
    """The commands of one sandbox."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    async def run(self, body: RunCommand) -> CommandResult:
        """Run a command to its end. A deadline that passes is a result with `reason`, not an error."""
        stdout, stderr = ClippedOutput(), ClippedOutput()
        async with self._guest.use() as link, _running(link, body) as call:
            while (item := await call.receive()) is not None:
                if isinstance(item, Data):
                    (stderr if item.channel == DataChannel.STDERR else stdout).add(item.payload)
            exited = call.outcome(Exited)
        return CommandResult(
            stdout=stdout.text(),
            stderr=stderr.text(),
            exit_code=exited.exit_code,
            duration_ms=exited.duration_ms,
            reason=exited.reason,
            stdout_dropped_bytes=stdout.dropped_bytes,
            stderr_dropped_bytes=stderr.dropped_bytes,
            survivors=exited.survivors,
        )

    async def stream(self, body: RunCommand) -> AsyncIterator[CommandEvent]:
        """Yield output as it is printed and `CommandExited` last. Closing the iterator kills the command."""
        chunks = {channel: TextChunks() for channel in DataChannel}
        async with self._guest.use() as link, _running(link, body) as call:
            while (item := await call.receive()) is not None:
                if isinstance(item, Data) and (text := chunks[item.channel].feed(item.payload)):
                    yield _chunk(item.channel, text)
            exited = call.outcome(Exited)
        for channel, decoder in chunks.items():
            if rest := decoder.end():
                yield _chunk(channel, rest)
        yield CommandExited(
            exit_code=exited.exit_code,
            duration_ms=exited.duration_ms,
            reason=exited.reason,
            survivors=exited.survivors,
        )

    async def run_once(self, body: RunOnce) -> RunOnceResult:
        """Run code in a fresh interpreter that reads it from its standard input."""
        language = body.language.strip().lower()
        interpreter = _INTERPRETERS.get(language)
        if interpreter is None:
            known = ", ".join(sorted(_INTERPRETERS))
            raise errors.UnknownLanguageError(f"can't run {body.language!r}; there is {known}")
        result = await self.run(
            RunCommand(cmd=f"exec {interpreter}", stdin=body.code, timeout_seconds=body.timeout_seconds)
        )
        return RunOnceResult(
            language=language,
            stdout=result.stdout,
            stderr=result.stderr,
            exit_code=result.exit_code,
            duration_ms=result.duration_ms,
        )


@contextlib.asynccontextmanager
async def _running(link: GuestLink, body: RunCommand) -> AsyncGenerator[Call]:
    """Start the command, feed it its input beside whatever the caller does, and end it on the way out."""
    if "\0" in body.cmd:
        raise errors.InvalidRequestError("a command can't hold a NUL character")
    timeout_seconds = body.timeout_seconds or DEFAULT_COMMAND_TIMEOUT_SECONDS
    call = link.open(
        Exec(
            command=body.cmd,
            cwd=body.cwd or "",
            env=body.env,
            user=body.user or "",
            timeout_seconds=timeout_seconds,
            idle_timeout_seconds=body.idle_timeout_seconds,
            has_stdin=body.stdin is not None,
        )
    )
    call.expire_after(timeout_seconds + GRACE_SECONDS, "exec")
    feeding = asyncio.ensure_future(_feed(call, body.stdin)) if body.stdin is not None else None
    try:
        yield call
    finally:
        if feeding is not None:
            feeding.cancel()
        call.abandon()


async def _feed(call: Call, text: str) -> None:
    with contextlib.suppress(errors.APIError):  # the receiving side meets the same fault
        await call.send(text.encode(errors="surrogateescape"))
        call.send_eof()


def _chunk(channel: DataChannel, text: str) -> StdoutChunk | StderrChunk:
    return StderrChunk(chunk=text) if channel == DataChannel.STDERR else StdoutChunk(chunk=text)
