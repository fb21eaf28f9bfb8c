"""A WebSocket as a handler sees it: messages in and out, and one way of ending for everything that goes wrong."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from enum import IntEnum
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from cellbox import errors
from cellbox.server.answers import RawHeaders, TimedOutError, ascii_json_bytes, error_status
from cellbox.server.call import CallerGone

_REASON_BYTES = 123
"""What a close frame has room for."""


class CloseCode(IntEnum):
    """With what a connection is closed. An error closes with 4000 + its HTTP status."""

    NORMAL = 1000
    GOING_AWAY = 1001
    UNSUPPORTED = 1003
    INVALID = 1007
    TOO_LARGE = 1009
    INTERNAL = 1011
    ERRORS = 4000


class WebSocket:
    """One connection. Nothing can be sent or received before `accept`; until then an error is an HTTP answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.subprotocols: Sequence[str] = scope.get("subprotocols", ())
        """Those that the client offers."""
        self.is_accepted = False
        self.is_closed = False
        """Whether either side has ended it."""
        self._receive = receive
        self._send = send

    async def accept(self, subprotocol: str | None = None, headers: RawHeaders | None = None) -> None:
        """Complete the handshake. Raises `CallerGone`."""
        message: Any = await self._receive()
        if message["type"] != "websocket.connect":
            raise CallerGone
        self.is_accepted = True
        await self._pass({"type": "websocket.accept", "subprotocol": subprotocol, "headers": headers or []})

    async def receive(self) -> str | bytes | None:
        """Return the next message; None once the client has ended the connection or lost it."""
        if self.is_closed:
            return None
        message: Any = await self._receive()
        if message["type"] == "websocket.disconnect":
            self.is_closed = True
            return None
        text: str | None = message.get("text")
        return message["bytes"] if text is None else text

    async def messages(self) -> AsyncIterator[str | bytes]:
        """Iterate over what the client sends until it leaves."""
        while (message := await self.receive()) is not None:
            yield message

    async def send(self, message: str | bytes) -> None:
        """Send one message, waiting while the client is slow. Raises `CallerGone`."""
        if self.is_closed:
            raise CallerGone
        key = "text" if isinstance(message, str) else "bytes"
        await self._pass({"type": "websocket.send", key: message})

    async def send_json(self, value: object) -> None:
        """Send a value as a JSON document. Raises `CallerGone`."""
        await self.send(ascii_json_bytes(value).decode("ascii"))

    async def close(self, code: int = CloseCode.NORMAL, reason: str = "") -> None:
        """End the connection. Idempotent; one that the client has ended already is fine."""
        if self.is_closed:
            return
        self.is_closed = True
        text = reason.encode()[:_REASON_BYTES].decode(errors="ignore")
        with contextlib.suppress(ClientDisconnected, RuntimeError):  # lost or closed in the meantime
            await self._send({"type": "websocket.close", "code": int(code), "reason": text})

    async def fail(self, error: errors.APIError | TimedOutError) -> None:
        """End the connection with what went wrong: the reason is `<code>: <message>`."""
        await self.close(CloseCode.ERRORS + error_status(error), f"{error.code}: {error.message}")

    async def _pass(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except (ClientDisconnected, RuntimeError) as error:  # the latter when a client answered no ping
            self.is_closed = True
            raise CallerGone from error


def decode_message(decoder: msgspec.json.Decoder[Any], message: str | bytes) -> Any:
    """Decode a JSON document that came as a text message. Raises `InvalidRequestError`."""
    if isinstance(message, bytes):
        raise errors.InvalidRequestError("JSON must be sent as text messages, not as binary ones")
    try:
        return decoder.decode(message)
    except msgspec.DecodeError as error:
        raise errors.InvalidRequestError(str(error)) from None
