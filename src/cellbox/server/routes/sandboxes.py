"""Sandboxes: create, list, look at, keep alive, kill; and their logs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

from cellbox import errors
from cellbox.control.logs import LogStream, SandboxLog
from cellbox.protocol import operations
from cellbox.protocol.account import LogLine
from cellbox.protocol.journal import MAX_PAGE_ENTRIES, Journal
from cellbox.protocol.sandboxes import (
    CreateSandbox,
    Lifecycle,
    SandboxInfo,
    SandboxUsage,
    UpdateLifecycle,
    UpdateMetadata,
)
from cellbox.server.answers import BytesAnswer
from cellbox.server.call import Answer, Call
from cellbox.server.routing import Handlers
from cellbox.server.streams import EventStream

handlers = Handlers()

# What Python's `str.splitlines` takes for the end of a line beside the real ones; clients split logs with it.
_ODD_LINE_ENDS = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


@handlers.handles(operations.create_sandbox)
async def create_sandbox(call: Call[CreateSandbox]) -> SandboxInfo:
    with call.cancelled_on_disconnect():
        sandbox = await call.control.sandboxes.create(call.caller.owner, call.body)
    call.parameters["sandbox_id"] = sandbox.id  # for the log
    return sandbox.info()


@handlers.handles(operations.list_sandboxes)
async def list_sandboxes(call: Call[None]) -> list[SandboxInfo]:
    return [sandbox.info() for sandbox in call.control.sandboxes.list(call.caller.owner)]


@handlers.handles(operations.get_sandbox)
async def get_sandbox(call: Call[None]) -> SandboxInfo:
    return call.sandbox().info()


@handlers.handles(operations.kill_sandbox)
async def kill_sandbox(call: Call[None]) -> None:
    await call.control.sandboxes.kill(call.caller.owner, call.parameters["sandbox_id"])


@handlers.handles(operations.get_lifecycle)
async def get_lifecycle(call: Call[None]) -> Lifecycle:
    return call.sandbox().lifecycle()


@handlers.handles(operations.update_lifecycle)
async def update_lifecycle(call: Call[UpdateLifecycle]) -> Lifecycle:
    return await call.sandbox().update_lifecycle(call.body)


@handlers.handles(operations.update_metadata)
async def update_metadata(call: Call[UpdateMetadata]) -> SandboxInfo:
    return await call.sandbox().update_metadata(call.body)


@handlers.handles(operations.get_usage)
async def get_usage(call: Call[None]) -> SandboxUsage:
    return await call.sandbox().usage()


@handlers.handles(operations.get_logs)
async def get_logs(call: Call[None]) -> str | Answer:
    log = call.sandbox().log
    stream = call.query.get("stream") or "both"
    if stream not in ("both", "stdout", "stderr"):
        raise errors.InvalidRequestError(f"stream must be both, stdout or stderr, not {stream[:40]!r}")
    if call.flag("follow"):
        return EventStream(call, _lines(log, stream))
    text = _ODD_LINE_ENDS.sub(" ", log.text(stream, call.number("tail")))
    return BytesAnswer(text.encode("utf-8", "replace"), "text/plain; charset=utf-8")


@handlers.handles(operations.read_journal)
async def read_journal(call: Call[None]) -> Journal:
    after, limit = call.number("after", 0) or 0, call.number("limit", 100) or 0
    if not 1 <= limit <= MAX_PAGE_ENTRIES:
        raise errors.InvalidRequestError(f"limit must be 1 to {MAX_PAGE_ENTRIES}, not {limit}")
    # A journal outlives its sandbox: its owner is asked of the journal itself.
    return await call.control.journals.read(call.caller.owner, call.parameters["sandbox_id"], after, limit)


async def _lines(log: SandboxLog, stream: LogStream) -> AsyncIterator[Any]:
    async for line in log.follow(stream):
        yield LogLine(line=f"{line}\n")
