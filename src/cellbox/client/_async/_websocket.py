"""WebSockets of the daemon: messages both ways, and the errors of every other request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from cellbox.client._codec import encode_body
from cellbox.client._compat import async_within
from cellbox.client._errors import error_from_answer, error_from_close
from cellbox.errors import ConnectionLostError, DaemonUnavailableError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from cellbox.client._config import Endpoint
    from cellbox.protocol.operations import Operation

_OPEN_SECONDS = 60.0
_CLOSE_SECONDS = 5.0
_HANDLED = (b"host", b"accept", b"user-agent")
"""Headers that the WebSocket library sets itself."""


class AsyncWebSocket:
    """One connection. Text messages are JSON documents, binary ones raw bytes."""

    def __init__(self, connection: ClientConnection, name: str) -> None:
        self._connection = connection
        self._name = name

    async def send(self, message: bytes | str) -> None:
        """Send one message.

        Raises:
            ConnectionLostError: The connection is gone.
            APIError: The daemon ended it, and said why.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            await self._connection.send(message)
        except ConnectionClosed as closed:
            raise self._ended(closed) or ConnectionLostError(f"The WebSocket of {self._name} is closed") from closed

    async def send_json(self, value: object) -> None:
        """Send a value as a JSON document; errors are those of `send`."""
        await self.send(encode_body(value).decode())

    async def receive(self, timeout_seconds: float | None = None) -> str | bytes | None:
        """Return the next message; None when the daemon has ended the connection in good order.

        Raises:
            TimeoutError: Nothing came within `timeout_seconds`.
            ConnectionLostError: The connection broke.
            APIError: The daemon ended it, and said why.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            if timeout_seconds is None:
                return await self._connection.recv()
            return await async_within(timeout_seconds, self._connection.recv)
        except ConnectionClosed as closed:
            if (error := self._ended(closed)) is not None:
                raise error from closed
            return None

    async def messages(self) -> AsyncIterator[str | bytes]:
        """Iterate over what the daemon sends until it ends the connection; errors are those of `receive`."""
        while (message := await self.receive()) is not None:
            yield message

    async def aclose(self) -> None:
        """End the connection. Idempotent."""
        await self._connection.close()

    def _ended(self, closed: Any) -> Exception | None:
        frame = closed.rcvd
        if frame is None:
            return ConnectionLostError(f"The WebSocket of {self._name} broke: how it came out is unknown")
        return error_from_close(frame.code, frame.reason)


@asynccontextmanager
async def open_websocket(
    endpoint: Endpoint, path: str, headers: list[tuple[bytes, bytes]], operation: Operation[Any, Any]
) -> AsyncGenerator[AsyncWebSocket, None]:
    """Connect to `path` of a daemon, and close the connection at the end of the block."""
    from websockets.asyncio import client
    from websockets.exceptions import InvalidHandshake, InvalidStatus

    sent = [(name.decode(), value.decode("latin-1")) for name, value in headers if name.lower() not in _HANDLED]
    options: dict[str, Any] = {
        "additional_headers": sent,
        "user_agent_header": next(value.decode() for name, value in headers if name == b"User-Agent"),
        "compression": None,
        "max_size": None,
        "open_timeout": _OPEN_SECONDS,
        "close_timeout": _CLOSE_SECONDS,
    }
    scheme = "wss" if endpoint.scheme == "https" else "ws"
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    url = f"{scheme}://{host}{'' if endpoint.port is None else f':{endpoint.port}'}{path}"
    library: Any = client
    try:
        if endpoint.socket_path is not None:
            connecting = library.unix_connect(endpoint.socket_path, url, **options)
        else:
            connecting = library.connect(url, proxy=endpoint.proxy, **options)
        connection: ClientConnection = await connecting.__aenter__()  # by hand: what the block raises is not ours
    except InvalidStatus as refused:
        answer = refused.response
        raw = [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.raw_items()]
        raise error_from_answer(answer.status_code, raw, bytes(answer.body or b"")) from None
    except (OSError, InvalidHandshake) as error:
        raise DaemonUnavailableError(f"No daemon answers at {endpoint.url or 'the private socket'}: {error}") from error
    try:
        yield AsyncWebSocket(connection, operation.name)
    finally:
        await connection.close()
