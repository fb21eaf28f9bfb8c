"""An MCP server with the code tools, over stdio or Streamable HTTP. Needs `cellbox[mcp]`; `cellbox mcp` runs it."""

from __future__ import annotations

import base64
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from cellbox._version import __version__
from cellbox.errors import AuthenticationError
from cellbox.integrations._async._sessions import AsyncSession, AsyncSessions
from cellbox.integrations._async._tools import AsyncSandboxTools
from cellbox.integrations.answers import Limits, ToolAnswer
from cellbox.integrations.tool_specs import ARGUMENTS, DEFAULT_TOOLS, ToolSpec, tool_specs

SESSION_HEADER = "x-cellbox-session"
"""Names a conversation, for HTTP clients whose protocol has no sessions of its own."""
_PROGRESS_SECONDS = 1.0
_MAX_CALLERS = 1000
_TOOLS = (*DEFAULT_TOOLS, "view_image")
_INSTRUCTIONS = (
    "A Linux sandbox for running code: isolated from the user's machine, with state that persists through the "
    "conversation. Compute with run_python instead of estimating; look at files before writing code for them."
)
_ANSWER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        **{name: {"type": "string"} for name in ("stdout", "stderr", "error", "result", "hint")},
        "exit_code": {"type": "integer"},
        "notices": {"type": "array", "items": {"type": "string"}},
        "artifacts": {"type": "array", "items": {"type": "object"}},
        "shown": {"type": "array", "items": {"type": "object"}},
    },
}
"""Of `ToolAnswer.structured()`."""

MakeSessions = Callable[[str | None], AsyncSessions]
"""Makes the registry of one caller, from the API key that it sent (None: it sent none)."""


class Callers:
    """The registries of those who call over HTTP: each caller's own API key opens its own sandboxes.

    Args:
        make_sessions: Makes a caller's registry.
        needs_key: Refuse callers that send no key.
    """

    def __init__(self, make_sessions: MakeSessions, *, needs_key: bool) -> None:
        self._make_sessions = make_sessions
        self._needs_key = needs_key
        self._known: OrderedDict[str, AsyncSessions] = OrderedDict()

    async def session(self, context: ServerRequestContext[Any, Any]) -> AsyncSession:
        """The session that a request belongs to.

        Raises:
            AuthenticationError: It carries no key where one is needed.
        """
        headers: Any = getattr(context.request, "headers", None) or {}
        api_key = _bearer(headers.get("authorization", ""))
        sessions = await self.sessions(api_key)
        name = headers.get("mcp-session-id") or headers.get(SESSION_HEADER) or "default"
        return sessions.session(f"{_fingerprint(api_key)}:{str(name)[:200]}")  # callers may share one store

    async def sessions(self, api_key: str | None) -> AsyncSessions:
        """The registry of a caller."""
        if api_key is None and self._needs_key:
            raise AuthenticationError("Send an API key of the daemon: `Authorization: Bearer pds_…`")
        name = _fingerprint(api_key)
        if name not in self._known:
            self._known[name] = self._make_sessions(api_key)
        self._known.move_to_end(name)
        if len(self._known) > _MAX_CALLERS:
            await self._known.popitem(last=False)[1].aclose()
        return self._known[name]

    async def aclose(self) -> None:
        """Close all registries, which kills their sandboxes unless their stores are kept."""
        async with AsyncExitStack() as exits:
            for sessions in self._known.values():
                exits.push_async_callback(sessions.aclose)


def build_server(
    callers: Callers,
    *,
    only: Collection[str] | None = None,
    with_images: bool = True,
    limits: Limits | None = None,
) -> Server[Any]:
    """The server, for any of the transports.

    Args:
        callers: Whose sandboxes the calls work in.
        only: Names of the tools, in place of all.
        with_images: Send charts as images for the user. Clients that give all of an answer to the model are better off
            without; a model gets images it asks for with `view_image` anyway.
        limits: How much of each part of an answer the model is given.
    """
    names = _TOOLS if only is None else only

    async def list_tools(
        context: ServerRequestContext[Any, Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        session = await callers.session(context)
        facts = await anyio.to_thread.run_sync(session.facts)
        return types.ListToolsResult(tools=[_tool(spec) for spec in tool_specs(facts, limits, names)])

    async def call_tool(
        context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if params.name not in names:
            return _failure(f"No tool {params.name!r}; there are {', '.join(names)}")
        tools = AsyncSandboxTools(await callers.session(context), limits=limits)
        async with _progress(context, params.name):
            answer = await tools.call(params.name, params.arguments or {})
        return _result(answer, tools, with_images=with_images)

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            yield {}
        finally:
            with anyio.CancelScope(shield=True):
                await callers.aclose()

    return Server(
        "cellbox",
        version=__version__,
        title="Cellbox sandbox",
        instructions=_INSTRUCTIONS,
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one client on this process's standard streams, until it closes them."""
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def serve_http(server: Server[Any], host: str, port: int, on_ready: Callable[[str], object]) -> None:
    """Serve Streamable HTTP at `/mcp`, until told to stop by a signal. `on_ready` gets the address."""
    import socket

    import uvicorn

    app = server.streamable_http_app(host=host)
    with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        on_ready(f"http://{host}:{listener.getsockname()[1]}/mcp")
        await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listener])


def run(
    make_sessions: MakeSessions,
    *,
    address: tuple[str, int] | None,
    needs_key: bool,
    only: Collection[str] | None,
    with_images: bool,
    on_ready: Callable[[str], object],
) -> None:
    """Serve until the client leaves, or over HTTP until a signal comes. Without an address, on standard streams."""
    server = build_server(Callers(make_sessions, needs_key=needs_key), only=only, with_images=with_images)
    if address is None:
        anyio.run(serve_stdio, server)
    else:
        anyio.run(serve_http, server, *address, on_ready)


def _tool(spec: ToolSpec) -> types.Tool:
    is_reading = spec.name in ("read_file", "list_files", "view_image")
    return types.Tool(
        name=spec.name,
        description=spec.description,
        input_schema=spec.parameters,
        output_schema=_ANSWER_SCHEMA,
        annotations=types.ToolAnnotations(
            read_only_hint=is_reading,
            destructive_hint=False,  # nothing outside the sandbox can be harmed
            idempotent_hint=ARGUMENTS[spec.name].is_repeatable,
            open_world_hint=spec.name == "install_packages",
        ),
    )


def _result(answer: ToolAnswer, tools: AsyncSandboxTools, *, with_images: bool) -> types.CallToolResult:
    content: list[Any] = [types.TextContent(type="text", text=answer.text)]
    for_user = answer.artifacts if with_images else []
    for artifact, audience in [*((one, "user") for one in for_user), *((one, "assistant") for one in answer.shown)]:
        found = tools.artifacts.get(artifact.id)
        if found is not None and artifact.is_viewable:
            content.append(
                types.ImageContent(
                    type="image",
                    data=base64.b64encode(found[1]).decode(),
                    mime_type=artifact.mime_type,
                    annotations=types.Annotations(audience=[audience]),
                )
            )
    return types.CallToolResult(content=content, structured_content=answer.structured(), is_error=answer.is_error)


def _failure(text: str) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content={"error": text}, is_error=True
    )


@asynccontextmanager
async def _progress(context: ServerRequestContext[Any, Any], name: str) -> AsyncGenerator[None]:
    """Tell the client from time to time that the call is still at work."""
    started = time.monotonic()

    async def tick() -> None:
        while True:
            await anyio.sleep(_PROGRESS_SECONDS)
            seconds = round(time.monotonic() - started)
            await context.session.report_progress(seconds, None, f"{name} has been running for {seconds} s")

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        yield
        group.cancel_scope.cancel()


def _fingerprint(api_key: str | None) -> str:
    return hashlib.sha256((api_key or "").encode()).hexdigest()[:32]


def _bearer(header: str) -> str | None:
    scheme, _, key = header.partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None
