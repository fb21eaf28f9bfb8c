"""The life of one request: guard, route, authenticate, decode, handle, answer, count, log."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import structlog
from starlette.types import Receive, Scope, Send

from cellbox import errors
from cellbox.control.keys import LOCAL_CALLER, Caller
from cellbox.server import answers
from cellbox.server.answers import RawHeaders
from cellbox.server.bodies import decode_body, read_body, refuse_encoded
from cellbox.server.call import Answer, Call, CallerGone
from cellbox.server.guard import Guard
from cellbox.server.metrics import Metrics
from cellbox.server.peer import Peer, peer_of
from cellbox.server.query import check_query, parse_query, split_path
from cellbox.server.routes import all_routes
from cellbox.server.routing import WEBSOCKET, Route, RoutingTable
from cellbox.server.streams import REVOCATION_SECONDS
from cellbox.server.websocket import WebSocket

if TYPE_CHECKING:
    from cellbox.control.control import Control
    from cellbox.server.listen import Address

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,64}")
_NOBODY = Caller(owner="", is_admin=False, method="token")
_DISCONNECTED = 499
"""In logs and metrics only: the caller went away before the answer."""

_log = structlog.stdlib.get_logger("cellbox.access")


class Api:
    """The ASGI application."""

    def __init__(self, control: Control, address: Address) -> None:
        settings = control.settings
        self._control = control
        self._settings = settings
        self._guard = Guard(address, settings.allowed_hosts, settings.allowed_origins)
        self._table = RoutingTable(all_routes())
        self.metrics = Metrics(control)
        self.last_request = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """For how long there has been no request."""
        return 0.0 if self.metrics.in_progress else time.monotonic() - self.last_request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            await _Exchange(self, scope, receive, send).run()

    # What follows is for `_Exchange` and for `routes/system.py`.

    @property
    def control(self) -> Control:
        return self._control

    def check(self, headers: dict[bytes, bytes]) -> bytes | None:
        return self._guard.check(headers)

    def find(self, scope: Scope) -> tuple[Route, dict[str, str]]:
        """Route a request by its raw path, so that an encoded slash stays inside its part."""
        try:
            parts = split_path(scope["raw_path"])
        except ValueError:
            raise errors.NotFoundError("no such route") from None
        return self._table.find(scope.get("method", WEBSOCKET), parts)

    def authenticate(self, headers: dict[bytes, bytes], query: dict[str, str], peer: Peer | None) -> Caller:
        """Find out who calls. A key that was sent counts, and must be good, even where none is needed."""
        secret = _sent_key(headers) or query.get("access_token", "")
        if secret:
            return self._control.keys.authenticate(secret)
        if peer is not None and peer.is_unix and peer.is_own_user:
            return LOCAL_CALLER
        raise errors.AuthenticationError("unauthorized", detail="missing bearer token")


class _Exchange:
    """One request and its answer, or one WebSocket from its handshake to its end."""

    __slots__ = (
        "api", "headers", "is_answered", "owner", "parameters", "peer", "receive", "request_id", "route", "scope",
        "send_", "started", "status", "trailing", "websocket",
    )  # fmt: skip

    def __init__(self, api: Api, scope: Scope, receive: Receive, send: Send) -> None:
        self.api = api
        self.scope = scope
        self.receive = receive
        self.send_ = send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.peer = peer_of(scope)
        self.websocket = WebSocket(scope, receive, self.send) if scope["type"] == "websocket" else None
        sent = self.headers.get(b"x-request-id", b"")
        self.request_id = sent if _REQUEST_ID.fullmatch(sent) else secrets.token_hex(8).encode()
        self.trailing: RawHeaders = [(b"x-request-id", self.request_id)]
        self.route: Route | None = None
        self.parameters: dict[str, str] = {}
        self.owner = ""
        self.status = 0
        self.is_answered = False
        self.started = time.perf_counter()

    async def run(self) -> None:
        metrics = self.api.metrics
        metrics.in_progress += 1
        try:
            await self._answer()
        finally:
            metrics.in_progress -= 1
            self.api.last_request = time.monotonic()
            seconds = time.perf_counter() - self.started
            operation = self.route.operation.name if self.route is not None else "unknown"
            metrics.observe(operation, self.status, seconds)
            _log.info(
                operation,
                status=self.status,
                ms=round(seconds * 1000, 2),
                owner=self.owner,
                sandbox_id=self.parameters.get("sandbox_id", "")[:64],
                request_id=self.request_id.decode(),
            )

    async def send(self, message: Any) -> None:
        """Send on, adding the headers that every answer has."""
        kind = message["type"]
        if kind in ("http.response.start", "websocket.accept"):
            self.status = message.get("status", 101)
            self.is_answered = True
            message["headers"].extend(self.trailing)
        if self.websocket is not None and kind.startswith("http."):
            message = {**message, "type": f"websocket.{kind}"}
        await self.send_(message)

    async def _answer(self) -> None:
        try:
            await self._handle()
        except CallerGone:
            self.status = _DISCONNECTED
        except asyncio.CancelledError:
            if self.peer is not None and self.peer.is_lost:
                self.status = _DISCONNECTED  # by `cancelled_on_disconnect`
            elif not self.is_answered:
                # The server is being stopped. No Retry-After: how far the work had come is unknown.
                error = errors.APIError("the server is shutting down", http_status=503)
                await self._send_error(error, [(b"connection", b"close")])
        except Exception as error:
            await self._report(error)

    async def _handle(self) -> None:
        headers = self.headers
        origin = self.api.check(headers)
        if origin is not None:
            self.trailing += [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
            if self.scope.get("method") == "OPTIONS":
                return await answers.send_empty(self.send, 204, [*_PREFLIGHT])
        route, self.parameters = self.api.find(self.scope)
        self.route = route
        operation = route.operation
        query = parse_query(self.scope["query_string"])
        caller = _NOBODY
        if operation.scope != "public":
            caller = self.api.authenticate(headers, query, self.peer)
            self.owner = caller.owner
            if operation.scope == "admin" and not caller.is_admin:
                raise errors.PermissionDeniedError("this needs an admin key")
        check_query(query, operation.query)
        body: Any = None
        if operation.body is not type(None):
            refuse_encoded(headers)
            if route.decoder is not None:
                raw = await read_body(self.receive, headers, self.api.control.settings.max_json_bytes)
                body = decode_body(route.decoder, headers, raw)
        call: Call[Any] = Call(
            control=self.api.control,
            caller=caller,
            parameters=self.parameters,
            query=query,
            headers=headers,
            body=body,
            receive=self.receive,
            peer=self.peer,
            metrics=self.api.metrics,
            websocket=self.websocket,
        )
        if self.websocket is not None:
            async with self._ended_with_its_key(caller):
                await route.handler(call)
            await self.websocket.close()
            return None
        result = await route.handler(call)
        if result is None:
            await answers.send_empty(self.send, operation.status, [])
        elif isinstance(result, Answer):
            await result.send_to(self.send)
        else:
            await answers.send_json(self.send, operation.status, result, [])
        return None

    @contextlib.asynccontextmanager
    async def _ended_with_its_key(self, caller: Caller) -> AsyncGenerator[None]:
        """End a WebSocket soon after the key that opened it was revoked."""
        assert self.websocket is not None
        websocket, keys, task = self.websocket, self.api.control.keys, asyncio.current_task()
        assert task is not None
        was_revoked = False

        async def watch() -> None:
            nonlocal was_revoked
            while True:
                await asyncio.sleep(REVOCATION_SECONDS)
                if not keys.is_current(caller):
                    was_revoked = True
                    task.cancel()
                    return

        watching = asyncio.ensure_future(watch())
        try:
            yield
        except asyncio.CancelledError:
            if not was_revoked:
                raise
            task.uncancel()
            await websocket.fail(errors.AuthenticationError("unauthorized", detail="the api key was revoked"))
        finally:
            watching.cancel()

    async def _report(self, error: Exception) -> None:
        known = answers.as_api_error(error)
        if known is None:
            operation = self.route.operation.name if self.route is not None else "unknown"
            _log.error("request failed", operation=operation, request_id=self.request_id.decode(), exc_info=error)
            known = errors.InternalError("internal error", detail="the daemon's log has more under this request id")
        if self.websocket is not None and self.is_answered:
            await self.websocket.fail(known)
            return
        if self.is_answered:
            # Too late for another status. Ending without the last chunk is how HTTP tells that the body is not whole.
            _log.warning("answer broken off", request_id=self.request_id.decode(), reason=known.message[:500])
            if self.peer is not None:
                self.peer.transport.close()
            return
        extra: RawHeaders = []
        if isinstance(known, errors.APIError):
            for detail, header in _HEADERS_FROM_DETAILS.items():
                if detail in known.details:
                    extra.append((header, str(known.details[detail]).encode()))
        await self._send_error(known, extra)

    async def _send_error(self, error: errors.APIError | answers.TimedOutError, extra: RawHeaders) -> None:
        render = self.route.render_error if self.route is not None else answers.render_error
        status, body = render(error, self.request_id.decode())
        await answers.send_json(self.send, status, body, [*answers.error_headers(error), *extra])


_HEADERS_FROM_DETAILS = {"allow": b"allow", "content_range": b"content-range", "upgrade": b"upgrade"}
"""What a 405, a 416 and a 426 must say in a header too."""
_PREFLIGHT: RawHeaders = [
    (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
    (b"access-control-allow-headers", b"authorization, content-type, range, x-api-key, x-request-id"),
    (b"access-control-max-age", b"600"),
]


def _sent_key(headers: dict[bytes, bytes]) -> str:
    """The key in `Authorization: Bearer …` or `X-API-Key`; another scheme counts as none."""
    authorization = headers.get(b"authorization")
    if authorization is not None and authorization[:7].lower() == b"bearer ":
        return authorization[7:].strip().decode("latin-1")
    return headers.get(b"x-api-key", b"").strip().decode("latin-1")
