"""The connection below HTTP: signs of life for impatient clients, who is at the other end, and when it is lost.

PandaStack's Python client ends any request after 30 s without a byte, whatever time limit a command was given. An
interim `100 Continue` resets that clock and commits to nothing. Node's client breaks on it, so only that client, by
its name, is sent any.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_IMPATIENT_CLIENT = b"pandastack-py/"


class Connection(HttpToolsProtocol):
    """One client's connection. Requests find it in their scope, see `connection_of`."""

    interval: float = 10.0
    peer_uid: int | None = None
    """The user at the other end of a unix socket, as the kernel knows it."""
    is_unix: bool = False
    is_lost: bool = False
    _lost_callback: Callable[[], object] | None = None
    _timer: asyncio.TimerHandle | None = None
    _waiting: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        if peer is not None and peer.family == socket.AF_UNIX:
            self.is_unix = True
            self.peer_uid = _peer_uid(peer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().connection_lost(exc)
        if self._lost_callback is not None:
            self._lost_callback()

    @property
    def is_own_user(self) -> bool:
        """Whether the client is run by the user who runs this daemon, or by root.

        Where the kernel does not say, the socket's mode (0600) has decided already.
        """
        return self.peer_uid is None or self.peer_uid in (0, os.geteuid())

    def on_lost(self, callback: Callable[[], object] | None) -> None:
        """Call back when the client is gone; at once if it is already. There is one callback at a time."""
        self._lost_callback = callback
        if callback is not None and self.is_lost:
            callback()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)["extensions"] = {"cellbox.connection": self}

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self._timer is None and any(
            name == b"user-agent" and value.startswith(_IMPATIENT_CLIENT) for name, value in self.headers
        ):
            self._timer = self.loop.call_later(self.interval, self._tick)

    def _tick(self) -> None:
        """Once per interval and connection: cheaper than a timer per request, and late by one interval at most."""
        self._timer = self.loop.call_later(self.interval, self._tick)
        cycle = self.cycle
        is_pending = not cycle.response_started and not self.pipeline
        if is_pending and cycle is self._waiting and not self.transport.is_closing():
            self.transport.write(_INTERIM)
        self._waiting = cycle if is_pending else None


def connection_class(keepalive_seconds: float) -> type[Connection]:
    """The protocol class with its interval, as uvicorn wants it."""
    return type("Connection", (Connection,), {"interval": keepalive_seconds})


def connection_of(scope: Scope) -> Connection | None:
    """The connection that a request came in on; None under another server, as in some tests."""
    extensions: dict[str, Any] = scope.get("extensions") or {}
    return extensions.get("cellbox.connection")


def _peer_uid(peer: Any) -> int | None:
    try:
        credentials: bytes = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except (OSError, AttributeError, NotImplementedError):
        return None
    return int(struct.unpack("3i", credentials)[1])
