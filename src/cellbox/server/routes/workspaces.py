"""Workspaces: create, list, look at, delete. Their files are in `files.py`, with those of sandboxes."""

from __future__ import annotations

from cellbox.protocol import operations
from cellbox.protocol.workspaces import CreateWorkspace, WorkspaceInfo
from cellbox.server.call import Call
from cellbox.server.routing import Handlers

handlers = Handlers()


@handlers.handles(operations.create_volume)
async def create_workspace(call: Call[CreateWorkspace]) -> WorkspaceInfo:
    return await call.control.workspaces.create(call.caller.owner, call.body)


@handlers.handles(operations.list_volumes)
async def list_workspaces(call: Call[None]) -> list[WorkspaceInfo]:
    return await call.control.workspaces.list(call.caller.owner)


@handlers.handles(operations.get_volume)
async def get_workspace(call: Call[None]) -> WorkspaceInfo:
    return await call.control.workspaces.get(call.caller.owner, call.parameters["name"])


@handlers.handles(operations.delete_volume)
async def delete_workspace(call: Call[None]) -> None:
    await call.control.workspaces.delete(call.caller.owner, call.parameters["name"])
