"""Snapshots, forks, and putting sandboxes to rest."""

from __future__ import annotations

from cellbox.protocol import operations
from cellbox.protocol.snapshots import (
    ForkResult,
    ForkSandbox,
    ForkTree,
    ForkTreeResult,
    PromoteChild,
    Promotion,
    SnapshotInfo,
    SnapshotList,
    StatusInfo,
    TakeSnapshot,
)
from cellbox.server.call import Call
from cellbox.server.routing import Handlers

handlers = Handlers()


@handlers.handles(operations.pause_sandbox)
async def pause_sandbox(call: Call[None]) -> None:
    await call.sandbox().pause()


@handlers.handles(operations.resume_sandbox)
async def resume_sandbox(call: Call[None]) -> None:
    await call.sandbox().resume()


@handlers.handles(operations.hibernate_sandbox)
async def hibernate_sandbox(call: Call[None]) -> StatusInfo:
    sandbox = call.sandbox()
    await call.control.sandboxes.hibernate(sandbox)
    return StatusInfo(status=sandbox.status)


@handlers.handles(operations.wake_sandbox)
async def wake_sandbox(call: Call[None]) -> StatusInfo:
    sandbox = call.sandbox()
    await call.control.sandboxes.wake(sandbox)
    return StatusInfo(status=sandbox.status)


@handlers.handles(operations.take_snapshot)
async def take_snapshot(call: Call[TakeSnapshot]) -> SnapshotInfo:
    sandbox = call.sandbox()
    return await call.control.snapshots.take(sandbox, call.body)


@handlers.handles(operations.list_snapshots)
async def list_snapshots(call: Call[None]) -> SnapshotList:
    found = call.control.snapshots.list(call.caller.owner, call.query.get("sandbox_id", ""))
    return SnapshotList(snapshots=found)


@handlers.handles(operations.get_snapshot)
async def get_snapshot(call: Call[None]) -> SnapshotInfo:
    return call.control.snapshots.get(call.caller.owner, call.parameters["snapshot_id"])


@handlers.handles(operations.delete_snapshot)
async def delete_snapshot(call: Call[None]) -> None:
    await call.control.snapshots.delete(call.caller.owner, call.parameters["snapshot_id"])


@handlers.handles(operations.fork_sandbox)
async def fork_sandbox(call: Call[ForkSandbox]) -> ForkResult:
    sandbox = call.sandbox()
    with call.cancelled_on_disconnect():
        return await call.control.forks.fork(sandbox, call.body)


@handlers.handles(operations.fork_tree)
async def fork_tree(call: Call[ForkTree]) -> ForkTreeResult:
    sandbox = call.sandbox()
    with call.cancelled_on_disconnect():
        return await call.control.forks.fork_tree(sandbox, call.body)


@handlers.handles(operations.promote_sandbox)
async def promote_sandbox(call: Call[PromoteChild]) -> Promotion:
    sandbox = call.sandbox()
    return await call.control.forks.promote(call.caller.owner, sandbox, call.body)
