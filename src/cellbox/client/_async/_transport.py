"""How bytes move: the one seam between the client and the network, and its implementation with pooled connections."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import httpcore2

    from cellbox.client._config import Endpoint

# Less than the daemon's own 75 s: leaving first avoids the race in which a request is sent on a connection that is just
# being closed, and nobody can tell whether it was seen.
_KEEPALIVE_SECONDS = 30.0
_MAX_IDLE_CONNECTIONS = 32


class AsyncTransport(Protocol):
    """Sends one request and returns its answer, whose body is yet to be read. `httpcore2`'s own interface."""

    async def handle_async_request(self, request: httpcore2.Request) -> httpcore2.Response: ...

    async def aclose(self) -> None: ...


def open_transport(endpoint: Endpoint) -> AsyncTransport:
    """Connections to one daemon, opened on demand and kept alive. No limit on their number: a cell may take hours."""
    import httpcore2

    proxy = httpcore2.Proxy(endpoint.proxy) if endpoint.proxy else None
    return httpcore2.AsyncConnectionPool(
        ssl_context=httpcore2.default_ssl_context() if endpoint.scheme == "https" else None,
        proxy=proxy,
        max_connections=None,
        max_keepalive_connections=_MAX_IDLE_CONNECTIONS,
        keepalive_expiry=_KEEPALIVE_SECONDS,
        uds=endpoint.socket_path,
        socket_options=None if endpoint.socket_path else _tcp_options(),
    )


def _tcp_options() -> list[tuple[int, int, int]]:
    """Notice within about a minute that the other machine is gone, however long a cell may be silent."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def process_id() -> int:
    """Connections must not be shared with a forked child."""
    return os.getpid()
