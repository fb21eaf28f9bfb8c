"""One daemon as the handles see it: operations in, values or typed errors out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from cellbox._version import __version__
from cellbox.client._async._stream import AsyncEventStream
from cellbox.client._async._transport import AsyncTransport, open_transport, process_id
from cellbox.client._async._websocket import AsyncWebSocket, open_websocket
from cellbox.client._codec import Query, decode_answer, encode_body, target
from cellbox.client._compat import AsyncLock, async_in_thread, async_scope
from cellbox.client._config import Endpoint
from cellbox.client._errors import error_from_answer, header
from cellbox.client._events import EventReader, is_terminal, needs_terminal
from cellbox.errors import ConnectionLostError, DaemonUnavailableError
from cellbox.protocol.operations import Operation

if TYPE_CHECKING:
    import httpcore2

BodyT = TypeVar("BodyT")
ResultT = TypeVar("ResultT")
Content = bytes | AsyncIterable[bytes]

_CONNECT_SECONDS = 10.0
_WRITE_SECONDS = 60.0
_USER_AGENT = f"cellbox-python/{__version__}".encode()
_OK = range(200, 300)
NO_IDS: Mapping[str, str] = {}


class AsyncConnection:
    """Sends operations to one daemon. Safe to share between tasks, and in the blocking flavour between threads."""

    def __init__(self, endpoint: Endpoint, *, timeout_seconds: float, transport: AsyncTransport | None = None) -> None:
        self.endpoint = endpoint
        self.timeout_seconds = timeout_seconds
        self._given = transport
        self._transport: AsyncTransport | None = transport
        self._bound_to: tuple[int, object] | None = None
        self._opening = AsyncLock()
        self._origin: Any = None
        self._reached = endpoint
        """Where requests really go: with the socket of the private daemon, once that was found."""
        self._headers: list[tuple[bytes, bytes]] = []

    async def call(
        self,
        operation: Operation[BodyT, ResultT],
        body: BodyT | None = None,
        *,
        query: Query = (),
        timeout_seconds: float | None = None,
        ids: Mapping[str, str] = NO_IDS,
    ) -> ResultT:
        """Send one operation with a JSON body and wait for its answer.

        Args:
            timeout_seconds: How long the daemon may be silent; by default the client's own limit.
            ids: What stands in the operation's path.

        Raises:
            DaemonUnavailableError: Nobody answers there; nothing was sent.
            ConnectionLostError: The answer did not come whole; whether the operation ran is unknown.
            APIError: The daemon refused or failed.
        """
        content = None if body is None else encode_body(body)
        async with self.open(operation, content, query=query, timeout_seconds=timeout_seconds, ids=ids) as response:
            data = await response.aread()
        return decode_answer(operation, response.status, header(response.headers, b"content-type"), data)

    def stream(
        self,
        operation: Operation[BodyT, Any],
        body: BodyT | None = None,
        *,
        query: Query = (),
        timeout_seconds: float | None = None,
        ids: Mapping[str, str] = NO_IDS,
    ) -> AsyncEventStream[Any]:
        """Send one operation and iterate over its events; the request goes out with the first step."""
        content = None if body is None else encode_body(body)
        return AsyncEventStream(self._events(operation, content, query, timeout_seconds, ids))

    async def _events(
        self,
        operation: Operation[Any, Any],
        content: bytes | None,
        query: Query,
        timeout_seconds: float | None,
        ids: Mapping[str, str],
    ) -> AsyncGenerator[Any, None]:
        reader = EventReader(operation)
        async with self.open(operation, content, query=query, timeout_seconds=timeout_seconds, ids=ids) as response:
            async for chunk in response.aiter_stream():
                for event in reader.feed(chunk):
                    yield event
                    if is_terminal(event):
                        return
        if needs_terminal(operation):
            raise ConnectionLostError(
                f"The stream of {operation.name} ended before its last event: how it came out is unknown"
            )

    @asynccontextmanager
    async def websocket(
        self, operation: Operation[Any, Any], *, query: Query = (), ids: Mapping[str, str] = NO_IDS
    ) -> AsyncGenerator[AsyncWebSocket, None]:
        """Open an operation that is a WebSocket, and close it at the end of the block.

        Raises:
            DaemonUnavailableError: Nobody answers there.
            APIError: The daemon refused.
        """
        await self._ready()
        path = target(self.endpoint.prefix, operation, ids, query)
        async with open_websocket(self._reached, path, self._headers, operation) as websocket:
            yield websocket

    @asynccontextmanager
    async def open(
        self,
        operation: Operation[Any, Any],
        content: Content | None = None,
        *,
        query: Query = (),
        timeout_seconds: float | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        is_versioned: bool = True,
        allow_status: int | None = None,
        ids: Mapping[str, str] = NO_IDS,
    ) -> AsyncGenerator[httpcore2.Response, None]:
        """Send one operation and hand out its successful answer with the body unread.

        Args:
            is_versioned: Whether its path is below `/v1`.
            allow_status: An answer that is no success and yet no error here.

        Raises:
            DaemonUnavailableError: Nobody answers there; nothing was sent.
            ConnectionLostError: The answer did not come whole; whether the operation ran is unknown.
            APIError: The daemon refused or failed.
        """
        import httpcore2

        prefix = self.endpoint.prefix if is_versioned else self.endpoint.prefix.removesuffix("/v1")
        path = target(prefix, operation, ids, query)
        read_seconds = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        response: httpcore2.Response | None = None
        try:
            response = await self._send(operation, path, content, headers, read_seconds)
            if response.status not in _OK and response.status != allow_status:
                raise error_from_answer(response.status, response.headers, await response.aread())
            yield response
        except (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise _connection_lost(operation, error, read_seconds) from error
        finally:
            if response is not None:
                await response.aclose()

    async def _send(
        self,
        operation: Operation[Any, Any],
        path: str,
        content: Content | None,
        headers: tuple[tuple[bytes, bytes], ...],
        read_seconds: float,
    ) -> httpcore2.Response:
        """Send a request; twice only where that can't run anything twice."""
        import httpcore2

        transport = await self._ready()
        try:
            return await transport.handle_async_request(
                self._request(operation.method, path, content, headers, read_seconds)
            )
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.ProxyError) as error:
            if not self._is_private:
                raise DaemonUnavailableError(
                    f"No daemon answers at {self.endpoint.url}: {_text(error)}. Nothing was sent"
                ) from error
            transport = await self._ready(restart=True)
        except (httpcore2.ReadError, httpcore2.WriteError, httpcore2.RemoteProtocolError):
            if operation.method != "GET":
                raise
        try:
            return await transport.handle_async_request(
                self._request(operation.method, path, content, headers, read_seconds)
            )
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
            raise DaemonUnavailableError(f"The daemon went away: {_text(error)}. Nothing was sent") from error

    @property
    def _is_private(self) -> bool:
        return self._given is None and self.endpoint.is_private

    async def _ready(self, restart: bool = False) -> AsyncTransport:
        """The transport, with a private daemon behind it if none is configured."""
        if self._given is not None and self._origin is not None:
            return self._given
        here = (process_id(), async_scope())
        if self._transport is not None and here == self._bound_to and not restart:
            return self._transport
        async with self._opening:
            if self._transport is not None and here == self._bound_to and not restart:
                return self._transport  # someone else was first
            endpoint = self.endpoint
            if self._is_private:
                from cellbox.client._local import ensure_daemon

                endpoint = replace(endpoint, socket_path=await async_in_thread(ensure_daemon))
            self._prepare(endpoint)
            self._transport = self._given or open_transport(endpoint)
            self._bound_to = here
            return self._transport

    def _prepare(self, endpoint: Endpoint) -> None:
        """What is the same in every request."""
        import httpcore2

        self._reached = endpoint
        self._origin = httpcore2.URL(scheme=endpoint.scheme, host=endpoint.host, port=endpoint.port, target=b"/")
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        self._headers = [
            (b"Host", (host if endpoint.port is None else f"{host}:{endpoint.port}").encode("ascii")),
            (b"User-Agent", _USER_AGENT),
            (b"Accept", b"application/json, text/event-stream, */*"),
        ]
        if endpoint.api_key:
            self._headers.append((b"Authorization", f"Bearer {endpoint.api_key.strip()}".encode("latin-1")))

    def _request(
        self,
        method: str,
        path: str,
        content: Content | None,
        headers: tuple[tuple[bytes, bytes], ...],
        read_seconds: float,
    ) -> httpcore2.Request:
        import httpcore2

        sent = [*self._headers, *headers]
        if isinstance(content, bytes):
            sent.append((b"Content-Length", str(len(content)).encode()))
            if not headers:
                sent.append((b"Content-Type", b"application/json"))
        elif content is None and method != "GET":
            sent.append((b"Content-Length", b"0"))
        elif content is not None and not any(name == b"Content-Length" for name, _ in headers):
            sent.append((b"Transfer-Encoding", b"chunked"))
        origin = self._origin
        timeout = {"connect": _CONNECT_SECONDS, "write": _WRITE_SECONDS, "read": read_seconds, "pool": _CONNECT_SECONDS}
        return httpcore2.Request(
            method,
            httpcore2.URL(scheme=origin.scheme, host=origin.host, port=origin.port, target=path),
            headers=sent,
            content=content,
            extensions={"timeout": timeout},
        )

    async def aclose(self) -> None:
        """Close idle connections. The next call opens new ones."""
        transport, self._transport, self._bound_to = self._transport, self._given, None
        if transport is not None:
            await transport.aclose()


def _connection_lost(operation: Operation[Any, Any], error: Exception, read_seconds: float) -> ConnectionLostError:
    import httpcore2

    if isinstance(error, httpcore2.ReadTimeout):
        cause = f"the daemon was silent for {read_seconds:g} s"
    else:
        cause = _text(error)
    known = "" if operation.method == "GET" else "; whether it ran is unknown"
    return ConnectionLostError(f"The connection broke during {operation.name}: {cause}{known}")


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
