"""Shells that keep their state, and the commands that run in them."""

from __future__ import annotations

from cellbox.protocol import operations
from cellbox.protocol.contexts import Interrupted
from cellbox.protocol.shells import CreateShell, RunInShell, ShellCommandEnded, ShellInfo, ShellResult
from cellbox.server.call import Answer, Call
from cellbox.server.routing import Handlers
from cellbox.server.streams import EventStream

handlers = Handlers()


@handlers.handles(operations.create_shell)
async def create_shell(call: Call[CreateShell]) -> ShellInfo:
    return await call.sandbox().shells.create(call.body)


@handlers.handles(operations.list_shells)
async def list_shells(call: Call[None]) -> list[ShellInfo]:
    return await call.sandbox().shells.list()


@handlers.handles(operations.get_shell)
async def get_shell(call: Call[None]) -> ShellInfo:
    return await call.sandbox().shells.get(call.parameters["shell_id"])


@handlers.handles(operations.close_shell)
async def close_shell(call: Call[None]) -> None:
    await call.sandbox().shells.close(call.parameters["shell_id"])


@handlers.handles(operations.run_in_shell)
async def run_in_shell(call: Call[RunInShell]) -> ShellResult:
    with call.cancelled_on_disconnect():
        return await call.sandbox().shells.run(call.parameters["shell_id"], call.body)


@handlers.handles(operations.stream_in_shell)
async def stream_in_shell(call: Call[RunInShell]) -> Answer:
    events = call.sandbox().shells.stream(call.parameters["shell_id"], call.body)
    return EventStream(call, events, terminal=ShellCommandEnded)


@handlers.handles(operations.interrupt_shell)
async def interrupt_shell(call: Call[None]) -> Interrupted:
    return await call.sandbox().shells.interrupt(call.parameters["shell_id"])
