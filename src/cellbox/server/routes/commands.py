"""Commands: run one and wait, or stream its output. A caller that goes away takes its command with it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cellbox.protocol import operations
from cellbox.protocol.commands import CommandEvent, CommandExited, CommandResult, RunCommand
from cellbox.server.answers import raise_if_timed_out
from cellbox.server.call import Answer, Call
from cellbox.server.multiplex import Multiplex
from cellbox.server.routing import Handlers
from cellbox.server.streams import EventStream, closing

handlers = Handlers()


@handlers.handles(operations.run_command)
async def run_command(call: Call[RunCommand]) -> CommandResult:
    with call.cancelled_on_disconnect():
        result = await call.sandbox().commands.run(call.body)
    raise_if_timed_out(call.body, result)
    return result


@handlers.handles(operations.stream_command)
async def stream_command(call: Call[RunCommand]) -> Answer:
    events = call.sandbox().commands.stream(call.body)
    return EventStream(call, _with_timeouts(call.body, events), terminal=CommandExited)


@handlers.handles(operations.run_commands)
async def run_commands(call: Call[None]) -> None:
    commands = call.sandbox().commands
    await call.websocket.accept()
    await Multiplex(call.websocket, commands).run()


async def _with_timeouts(body: RunCommand, events: AsyncIterator[CommandEvent]) -> AsyncIterator[CommandEvent]:
    async with closing(events):
        async for event in events:
            if isinstance(event, CommandExited):
                result = CommandResult(
                    stdout="",
                    stderr="",
                    exit_code=event.exit_code,
                    duration_ms=event.duration_ms,
                    reason=event.reason,
                    survivors=event.survivors,
                )
                raise_if_timed_out(body, result)
            yield event
