"""The connection below HTTP: signs of life for impatient clients.

PandaStack's Python client ends any request after 30 s without a byte, whatever time limit a command was given. An
interim `100 Continue` resets that clock and commits to nothing. Node's client breaks on it, so only that client, by
its name, is sent any.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from cellbox.server.peer import EXTENSION, Peer

_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
_IMPATIENT_CLIENT = b"pandastack-py/"


class Connection(Peer, HttpToolsProtocol):
    """One client's connection."""

    interval: float = 10.0
    _timer: asyncio.TimerHandle | None = None
    _waiting: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.note_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.is_lost = True
        super().connection_lost(exc)
        self.note_lost()

    def handle_websocket_upgrade(self) -> None:
        self._stop_timer()  # from here on another protocol has the connection, and sees its end
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)["extensions"] = {EXTENSION: self}

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

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def connection_class(keepalive_seconds: float) -> type[Connection]:
    """The protocol class with its interval, as uvicorn wants it."""
    return type("Connection", (Connection,), {"interval": keepalive_seconds})
