"""Who is at the other end of a connection, and whether they still are. The same before and after an upgrade."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

from starlette.types import Scope


class Peer:
    """The other end of one connection. Requests find it in their scope, see `peer_of`."""

    is_unix: bool = False
    is_lost: bool = False
    peer_uid: int | None = None
    """The user at the other end of a unix socket, as the kernel knows it."""
    transport: asyncio.Transport
    _lost_callback: Callable[[], object] | None = None

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

    def note_made(self, transport: asyncio.BaseTransport) -> None:
        """Look who it is. To be called when the connection is made."""
        peer = transport.get_extra_info("socket")
        if peer is not None and peer.family == socket.AF_UNIX:
            self.is_unix = True
            self.peer_uid = _peer_uid(peer)

    def note_lost(self) -> None:
        """Tell whoever wants to know. To be called when the connection is lost."""
        self.is_lost = True
        if self._lost_callback is not None:
            self._lost_callback()


EXTENSION = "cellbox.peer"


def peer_of(scope: Scope) -> Peer | None:
    """The connection that a request came in on; None under another server, as in some tests."""
    extensions: dict[str, Any] = scope.get("extensions") or {}
    return extensions.get(EXTENSION)


def _peer_uid(peer: Any) -> int | None:
    try:
        credentials: bytes = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except (OSError, AttributeError, NotImplementedError):
        return None
    return int(struct.unpack("3i", credentials)[1])
