"""Code contexts and the cells they run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from cellbox.protocol import operations
from cellbox.protocol.contexts import (
    CellEnded,
    CellEvent,
    ContextInfo,
    CreateContext,
    Execution,
    Interrupted,
    RunCode,
    RunOnce,
    RunOnceResult,
)
from cellbox.server.answers import raise_if_cell_timed_out
from cellbox.server.call import Answer, Call
from cellbox.server.routing import Handlers
from cellbox.server.streams import EventStream, closing

handlers = Handlers()


@handlers.handles(operations.create_context)
async def create_context(call: Call[CreateContext]) -> ContextInfo:
    return await call.sandbox().contexts.create(call.body)


@handlers.handles(operations.list_contexts)
async def list_contexts(call: Call[None]) -> list[ContextInfo]:
    return await call.sandbox().contexts.list()


@handlers.handles(operations.close_context)
async def close_context(call: Call[None]) -> None:
    await call.sandbox().contexts.close(call.parameters["context_id"])


@handlers.handles(operations.run_code)
async def run_code(call: Call[RunCode]) -> Execution:
    is_detached = call.body.on_disconnect == "detach"
    with contextlib.nullcontext() if is_detached else call.cancelled_on_disconnect():
        execution = await call.sandbox().contexts.run(call.parameters["context_id"], call.body)
    raise_if_cell_timed_out(execution)
    return execution


@handlers.handles(operations.stream_code)
async def stream_code(call: Call[RunCode]) -> Answer:
    events = call.sandbox().contexts.stream(call.parameters["context_id"], call.body)
    is_detached = call.body.on_disconnect == "detach"
    return EventStream(call, _with_timeouts(events), terminal=CellEnded, detached=is_detached)


@handlers.handles(operations.interrupt_context)
async def interrupt_context(call: Call[None]) -> Interrupted:
    return await call.sandbox().contexts.interrupt(call.parameters["context_id"])


@handlers.handles(operations.restart_context)
async def restart_context(call: Call[None]) -> ContextInfo:
    return await call.sandbox().contexts.restart(call.parameters["context_id"])


@handlers.handles(operations.list_languages)
async def list_languages(call: Call[None]) -> list[str]:
    return await call.sandbox().contexts.languages()


@handlers.handles(operations.run_once)
async def run_once(call: Call[RunOnce]) -> RunOnceResult:
    with call.cancelled_on_disconnect():
        return await call.sandbox().commands.run_once(call.body)


async def _with_timeouts(events: AsyncIterator[CellEvent]) -> AsyncIterator[CellEvent]:
    async with closing(events):
        async for event in events:
            if isinstance(event, CellEnded):
                raise_if_cell_timed_out(event.execution)
            yield event
