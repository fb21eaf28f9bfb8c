"""Many commands over one WebSocket, each under an id that the client chose."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from cellbox import errors
from cellbox.protocol.commands import (
    CommandEnd,
    CommandExited,
    CommandMessage,
    CommandOutput,
    CommandProblem,
    CommandResult,
    RunCommand,
    StderrChunk,
)
from cellbox.server.answers import TimedOutError, raise_if_timed_out, without_retry_words
from cellbox.server.call import CallerGone
from cellbox.server.streams import closing
from cellbox.server.websocket import WebSocket, decode_message

if TYPE_CHECKING:
    from cellbox.control.commands import Commands

MAX_COMMANDS = 64
"""In progress at once over one connection."""
_decoder = msgspec.json.Decoder(CommandMessage)


class Multiplex:
    """One connection's commands. They end with it."""

    def __init__(self, websocket: WebSocket, commands: Commands) -> None:
        self._websocket = websocket
        self._commands = commands
        self._running: dict[str | int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Start and end commands as the client says, until it leaves."""
        try:
            async for message in self._websocket.messages():
                await self._take(decode_message(_decoder, message))
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _take(self, message: CommandMessage) -> None:
        running = self._running.get(message.id)
        if message.cancel:
            if running is not None:
                running.cancel()
            return
        try:
            if running is not None:
                raise errors.ConflictError(f"a command with id {message.id!r} is running")
            if len(self._running) >= MAX_COMMANDS:
                raise errors.QuotaExceededError(f"at most {MAX_COMMANDS} commands run over one connection")
            if not message.cmd:
                raise errors.InvalidRequestError("cmd must not be empty")
        except errors.APIError as error:
            await self._websocket.send_json(CommandProblem(id=message.id, error=error.message, code=error.code))
            return
        task = asyncio.ensure_future(self._follow(message))
        self._running[message.id] = task
        task.add_done_callback(lambda _: self._running.pop(message.id, None))

    async def _follow(self, message: CommandMessage) -> None:
        """Tell what one command prints and how it ends."""
        fields = {name: getattr(message, name) for name in RunCommand.__struct_fields__}
        try:
            last = await self._stream(message.id, RunCommand(**fields))
        except CallerGone:
            return
        except asyncio.CancelledError:
            if self._websocket.is_closed:
                raise
            last = CommandProblem(id=message.id, error="the command was cancelled", code="cancelled")
        except TimedOutError as error:
            last = CommandProblem(id=message.id, error=error.message, code=error.code)
        except errors.APIError as error:
            last = CommandProblem(id=message.id, error=without_retry_words(error.message), code=error.code)
        self._running.pop(message.id, None)  # by the time the client reads of the end, the id is free
        try:
            await self._websocket.send_json(last)
        except CallerGone:
            return

    async def _stream(self, name: str | int, body: RunCommand) -> CommandEnd:
        events = self._commands.stream(body)
        async with closing(events):
            async for event in events:
                if isinstance(event, CommandExited):
                    raise_if_timed_out(body, _as_result(event))
                    return CommandEnd(
                        id=name,
                        exit=event.exit_code,
                        duration_ms=event.duration_ms,
                        reason=event.reason,
                        survivors=event.survivors,
                    )
                stream = "stderr" if isinstance(event, StderrChunk) else "stdout"
                await self._websocket.send_json(CommandOutput(id=name, stream=stream, data=event.chunk))
        raise errors.InternalError("the stream ended before its last event")


def _as_result(event: CommandExited) -> CommandResult:
    return CommandResult(stdout="", stderr="", exit_code=event.exit_code, reason=event.reason)
