"""Workspaces: list, look into, delete. Their files are in `files`, with those of sessions."""

from __future__ import annotations

import contextlib

from cellbox import errors
from cellbox.protocol.operation import Operation
from cellbox.protocol.operations import NoneType
from cellbox.server.call import Call
from cellbox.server.routing import Handlers
from cellbox.server.sandkasten import paths, values
from cellbox.server.sandkasten.faults import render_error
from cellbox.server.sandkasten.files import WORKSPACE, files_of, workspace_name

handlers = Handlers(render_error)


@handlers.handles(
    Operation(
        name="sandkasten_list_workspaces",
        method="GET",
        path="/workspaces",
        summary="List the caller's workspaces.",
        body=NoneType,
        result=values.Workspaces,
    )
)
async def list_workspaces(call: Call[None]) -> values.Workspaces:
    found = await call.control.workspaces.list(call.caller.owner)
    return values.Workspaces(workspaces=[values.Workspace(id=one.name, created_at=one.created_at) for one in found])


@handlers.handles(
    Operation(
        name="sandkasten_delete_workspace",
        method="DELETE",
        path=WORKSPACE,
        summary="Delete a workspace; one that is not there is no error.",
        body=NoneType,
        result=values.Ok,
    )
)
async def delete_workspace(call: Call[None]) -> values.Ok:
    with contextlib.suppress(errors.WorkspaceNotFoundError):
        await call.control.workspaces.delete(call.caller.owner, workspace_name(call))
    return values.Ok()


@handlers.handles(
    Operation(
        name="sandkasten_list_workspace_files",
        method="GET",
        path=f"{WORKSPACE}/fs",
        summary="List a directory of a workspace.",
        body=NoneType,
        result=values.WorkspaceEntries,
        query=("path",),
    )
)
async def list_files(call: Call[None]) -> values.WorkspaceEntries:
    async with files_of(call) as files:
        listing = await files.list(paths.workspace_path(call.query.get("path", ".")))
    return values.WorkspaceEntries(
        entries=[values.WorkspaceEntry(name=entry.name, is_dir=entry.is_dir) for entry in listing.entries]
    )
