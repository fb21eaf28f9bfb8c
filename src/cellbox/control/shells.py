"""Shells of one sandbox, and the commands that run in them."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator

from cellbox import errors
from cellbox.control.commands import GRACE_SECONDS
from cellbox.control.guest import Guest
from cellbox.control.link import Call, Data, GuestLink
from cellbox.control.output import ClippedOutput, TextChunks
from cellbox.protocol import shells as values
from cellbox.protocol.commands import DEFAULT_COMMAND_TIMEOUT_SECONDS
from cellbox.protocol.contexts import Interrupted
from cellbox.wire import messages

MAIN = "main"
"""The shell of those who need but one: it is started with its first command."""
_ANSWER_SECONDS = 30.0
_QUEUE_SECONDS = 3600.0


class Shells:
    """The shells of one sandbox."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._opening: asyncio.Task[messages.ShellInfo] | None = None
        self.main_directory = ""
        """Where the main shell is; empty before its first command."""

    async def create(self, body: values.CreateShell) -> values.ShellInfo:
        return _info(await self._open(uuid.uuid4().hex, body))

    async def list(self) -> list[values.ShellInfo]:
        async with self._guest.use() as link:
            found = await link.ask(messages.ListShells(), messages.ShellList, timeout_seconds=_ANSWER_SECONDS)
        return [_info(shell) for shell in found.shells]

    async def get(self, shell_id: str) -> values.ShellInfo:
        found = next((shell for shell in await self.list() if shell.id == shell_id), None)
        if found is None:
            raise errors.ShellNotFoundError(f"no shell {shell_id[:64]!r}: it was closed or never was")
        return found

    async def interrupt(self, shell_id: str) -> Interrupted:
        request = messages.InterruptShell(shell_id=shell_id)
        async with self._guest.use() as link:
            answer = await link.ask(request, messages.Interrupted, timeout_seconds=_ANSWER_SECONDS)
        return Interrupted(was_busy=answer.was_busy)

    async def close(self, shell_id: str) -> None:
        async with self._guest.use() as link:
            request = messages.CloseShell(shell_id=shell_id)
            await link.ask(request, messages.Done, timeout_seconds=_ANSWER_SECONDS)
        if shell_id == MAIN:
            self._opening, self.main_directory = None, ""

    async def run(self, shell_id: str, body: values.RunInShell) -> values.ShellResult:
        """Run a command to its end."""
        output = ClippedOutput()
        late = 0
        await self._ensure(shell_id)
        async with self._guest.use() as link, _running(link, shell_id, body) as call:
            while (item := await call.receive()) is not None:
                if isinstance(item, Data):
                    output.add(item.payload)
                elif isinstance(item, messages.LateOutput):
                    late = item.stdout
            done = call.outcome(messages.ShellDone)
        self._note(shell_id, done)
        return values.ShellResult(
            output=output.text(),
            exit_code=done.exit_code,
            cwd=done.cwd,
            duration_ms=done.duration_ms,
            reason=done.reason,
            state_kept=done.state_kept,
            dropped_bytes=output.dropped_bytes,
            late_bytes=late,
            late_dropped_bytes=done.late_dropped_bytes,
        )

    async def stream(self, shell_id: str, body: values.RunInShell) -> AsyncIterator[values.ShellEvent]:
        """Yield output as it is printed and `ShellCommandEnded` last. Closing the iterator ends the command."""
        text = TextChunks()
        late = 0
        await self._ensure(shell_id)
        async with self._guest.use() as link, _running(link, shell_id, body) as call:
            while (item := await call.receive()) is not None:
                if isinstance(item, messages.LateOutput):
                    late = item.stdout
                elif isinstance(item, Data):
                    earlier, own = item.payload[:late], item.payload[late:]
                    late -= len(earlier)
                    for piece, is_late in ((earlier, True), (own, False)):
                        if chunk := text.feed(piece):
                            yield values.ShellOutput(chunk=chunk, late=is_late)
            done = call.outcome(messages.ShellDone)
        self._note(shell_id, done)
        if rest := text.end():
            yield values.ShellOutput(chunk=rest)
        yield values.ShellCommandEnded(
            exit_code=done.exit_code,
            cwd=done.cwd,
            duration_ms=done.duration_ms,
            reason=done.reason,
            state_kept=done.state_kept,
            late_dropped_bytes=done.late_dropped_bytes,
        )

    async def _ensure(self, shell_id: str) -> None:
        """Start the main shell at its first use, once however many ask at the same time."""
        if shell_id != MAIN:
            return
        if self._opening is None or (self._opening.done() and _failed(self._opening)):
            self._opening = asyncio.ensure_future(self._open(MAIN, values.CreateShell()))
        await asyncio.shield(self._opening)

    async def _open(self, shell_id: str, body: values.CreateShell) -> messages.ShellInfo:
        request = messages.OpenShell(shell_id=shell_id, cwd=body.cwd or "", env=body.env, user=body.user or "")
        async with self._guest.use() as link:
            return await link.ask(request, messages.ShellInfo, timeout_seconds=_ANSWER_SECONDS)

    def _note(self, shell_id: str, done: messages.ShellDone) -> None:
        if shell_id == MAIN:
            self.main_directory = done.cwd


@contextlib.asynccontextmanager
async def _running(link: GuestLink, shell_id: str, body: values.RunInShell) -> AsyncGenerator[Call]:
    if "\0" in body.cmd:
        raise errors.InvalidRequestError("a command can't hold a NUL character")
    limit = body.timeout_seconds or DEFAULT_COMMAND_TIMEOUT_SECONDS
    call = link.open(
        messages.RunInShell(
            shell_id=shell_id,
            command=body.cmd,
            timeout_seconds=limit,
            idle_timeout_seconds=body.idle_timeout_seconds,
            terminal=body.terminal,
        )
    )
    call.expire_after(_QUEUE_SECONDS + limit + GRACE_SECONDS, "shell.run")
    try:
        yield call
    finally:
        call.abandon()


def _failed(task: asyncio.Task[messages.ShellInfo]) -> bool:
    return task.cancelled() or task.exception() is not None


def _info(info: messages.ShellInfo) -> values.ShellInfo:
    return values.ShellInfo(id=info.shell_id, cwd=info.cwd, is_busy=info.is_busy)
