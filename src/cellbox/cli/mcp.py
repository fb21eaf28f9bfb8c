"""`cellbox mcp`: the code tools for any MCP client."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from cellbox.cli.about import Flag
from cellbox.cli.exits import UsageError
from cellbox.cli.output import say
from cellbox.protocol.sandboxes import DEFAULT_TEMPLATE

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def mcp(
    *,
    http: str | None = None,
    template: str = DEFAULT_TEMPLATE,
    ttl: float = 1800,
    store: Path | None = None,
    tool: list[str] | None = None,
    no_images: Flag = False,
) -> None:
    """Serve the code tools to an MCP client: on standard streams, or with --http on an address.

    Over HTTP each caller sends an API key of the daemon as its bearer token, and works in sandboxes of that key's
    owner. On a loopback address a caller without a key is this command's own user.

    Args:
        http: HOST:PORT to serve Streamable HTTP on; the path is `/mcp`.
        template: What sandboxes are made from.
        ttl: Seconds that a sandbox outlives its last use.
        store: File that remembers which sandbox belongs to which conversation. Without it they end with this command.
        tool: Name of a tool to offer, in place of all; may be given several times.
        no_images: Do not send charts as images.
    """
    if importlib.util.find_spec("mcp") is None:
        raise UsageError("This needs the MCP package: pip install 'cellbox[mcp]'.")
    from cellbox.integrations._async._sessions import AsyncSessions
    from cellbox.integrations.session_store import SqliteSessionStore

    address = _address(http) if http is not None else None
    shared = SqliteSessionStore(store) if store is not None else None

    def make_sessions(api_key: str | None) -> AsyncSessions:
        return AsyncSessions(shared, template=template, ttl_seconds=ttl, api_key=api_key)

    server: Any = importlib.import_module("cellbox.integrations.mcp")
    server.run(
        make_sessions,
        address=address,
        needs_key=address is not None and address[0] not in _LOOPBACK,
        only=tool,
        with_images=not no_images,
        on_ready=_announce,
    )


def _announce(url: str) -> None:
    say(f"listening on {url}")


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise UsageError(f"--http takes HOST:PORT, not {text!r}.")
    return host.strip("[]"), int(port)
