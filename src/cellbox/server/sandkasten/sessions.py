"""Sessions: create, list, look at, destroy, measure."""

from __future__ import annotations

from typing import Any

from cellbox import errors
from cellbox.control.sandbox import LiveSandbox
from cellbox.protocol.operation import Operation
from cellbox.protocol.operations import NoneType
from cellbox.protocol.sandboxes import CreateSandbox, SandboxInfo, SandboxStatus
from cellbox.server.call import Call
from cellbox.server.routing import Handlers
from cellbox.server.sandkasten import values
from cellbox.server.sandkasten.faults import render_error
from cellbox.server.sandkasten.paths import ROOT

SESSION = "/sessions/{session_id}"
_IMAGE = "sandkasten.image"
"""Metadata that marks a sandbox as a session."""
_STATUSES = {SandboxStatus.STOPPING: "destroying", SandboxStatus.FAILED: "crashed"}

handlers = Handlers(render_error)


def session_of(call: Call[Any]) -> LiveSandbox:
    """The session named in the path. What is done with it begins its TTL anew."""
    session_id = call.parameters["session_id"]
    try:
        session = call.control.sandboxes.find(call.caller.owner, session_id)
    except errors.SandboxNotFoundError:
        raise errors.SandboxNotFoundError(f"session not found: {session_id[:64]}") from None
    call.parameters["sandbox_id"] = session_id  # for the log
    return session


@handlers.handles(
    Operation(
        name="sandkasten_create_session",
        method="POST",
        path="/sessions",
        summary="Create a sandbox with a shell that keeps its state.",
        body=values.CreateSession,
        result=values.SessionInfo,
        status=201,
    )
)
async def create_session(call: Call[values.CreateSession]) -> values.SessionInfo:
    request = call.body
    ttl_seconds = request.ttl_seconds or values.DEFAULT_TTL_SECONDS
    if ttl_seconds < 0:
        raise errors.InvalidRequestError("ttl_seconds must be non-negative")
    if ttl_seconds > values.MAX_TTL_SECONDS:
        raise errors.InvalidRequestError(f"ttl_seconds must not exceed {values.MAX_TTL_SECONDS} (24 hours)")
    image = request.image or values.DEFAULT_IMAGE
    try:
        template = call.control.templates.get(image).name
    except errors.UnknownTemplateError as error:
        raise errors.UnknownTemplateError(f"image not allowed: {image[:64]}", detail=error.message) from None
    with call.cancelled_on_disconnect():
        session = await call.control.sandboxes.create(
            call.caller.owner,
            CreateSandbox(
                template=template,
                ttl_seconds=ttl_seconds,
                metadata={_IMAGE: image},
                workspace=request.workspace_id or "",
            ),
        )
    call.parameters["sandbox_id"] = session.id
    return _describe(session, session.info(), is_new=True)


@handlers.handles(
    Operation(
        name="sandkasten_list_sessions",
        method="GET",
        path="/sessions",
        summary="List the caller's sessions, newest first.",
        body=NoneType,
        result=list[values.SessionInfo],
    )
)
async def list_sessions(call: Call[None]) -> list[values.SessionInfo]:
    found = ((sandbox, sandbox.info()) for sandbox in call.control.sandboxes.list(call.caller.owner))
    return [_describe(sandbox, info) for sandbox, info in found if _IMAGE in info.metadata]


@handlers.handles(
    Operation(
        name="sandkasten_get_session",
        method="GET",
        path=SESSION,
        summary="Look at a session.",
        body=NoneType,
        result=values.SessionInfo,
    )
)
async def get_session(call: Call[None]) -> values.SessionInfo:
    session = session_of(call)
    return _describe(session, session.info())


@handlers.handles(
    Operation(
        name="sandkasten_destroy_session",
        method="DELETE",
        path=SESSION,
        summary="Destroy a session; doing it again is no error.",
        body=NoneType,
        result=values.Ok,
    )
)
async def destroy_session(call: Call[None]) -> values.Ok:
    await call.control.sandboxes.kill(call.caller.owner, call.parameters["session_id"])
    return values.Ok()


@handlers.handles(
    Operation(
        name="sandkasten_get_stats",
        method="GET",
        path=f"{SESSION}/stats",
        summary="Measure what a session uses.",
        body=NoneType,
        result=values.Stats,
    )
)
async def get_stats(call: Call[None]) -> values.Stats:
    session = session_of(call)
    usage = await session.usage()
    return values.Stats(
        memory_bytes=usage.host_rss_bytes,
        memory_limit=session.info().memory_mb << 20,
        cpu_usage_usec=round(usage.host_cpu_seconds * 1_000_000),
    )


def _describe(session: LiveSandbox, info: SandboxInfo, *, is_new: bool = False) -> values.SessionInfo:
    assert info.expires_at is not None, "sessions are not persistent"
    more: dict[str, Any] = {}
    if info.workspace:
        more["workspace_id"] = info.workspace
    if is_new:
        more["acquire_source"] = "pool" if info.boot_mode == "pool" else "cold"
    return values.SessionInfo(
        id=info.id,
        image=info.metadata.get(_IMAGE, info.template),
        status=_STATUSES.get(info.status, "running"),  # pyright: ignore[reportArgumentType]
        cwd=session.shells.main_directory or ROOT,
        created_at=info.created_at,
        expires_at=info.expires_at,
        **more,
    )
