"""The connection below a WebSocket: `uvicorn`'s, with what our requests find in their scope and our own limits."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from cellbox.server.peer import EXTENSION, Peer

MAX_MESSAGE_BYTES = 1024 * 1024
"""Of one message from a client. A longer one ends the connection with code 1009."""
PING_SECONDS = 20.0
PONG_SECONDS = 60.0
"""A client that has not answered a ping by then is gone. Long, since one that is slow to read gets to it late."""


class UpgradedConnection(Peer, WebSocketsSansIOProtocol):
    """One client's connection after its handshake was asked for."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Not uvicorn's own: that one writes each target, with the key that may stand in it, into the log.
        self.logger = logging.getLogger("cellbox.websocket")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.note_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.note_lost()

    def handle_connect(self, event: Request) -> None:
        limit = self.config.limit_concurrency
        if limit is not None and len(self.connections) > limit:
            self._refuse(503, "too many connections\n")
            return
        super().handle_connect(event)
        if hasattr(self, "scope"):  # else the handshake was malformed, and is answered
            cast("dict[str, Any]", self.scope)["extensions"][EXTENSION] = self

    def _refuse(self, status: int, text: str) -> None:
        self.conn.send_response(self.conn.reject(status, text))
        self.handshake_complete = self.close_sent = True
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.close()
