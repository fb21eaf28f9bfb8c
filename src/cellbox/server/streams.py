"""Server-sent events, written so that every client of this wire reads them right.

JSON is pure ASCII on one line, the name comes before the data, and exactly one terminal event ends a stream: either
the operation's own last event or `error`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog
from starlette.types import Send

from cellbox import errors
from cellbox.server.answers import RawHeaders, TimedOutError, as_api_error, ascii_json_bytes, error_body, json_bytes
from cellbox.server.call import Answer, Call

_HEADERS: RawHeaders = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]
_FIRST_EVENT_SECONDS = 0.5
"""A failure within this time is an ordinary error with its own status; then the stream begins, silent or not."""
REVOCATION_SECONDS = 4.0
"""How long a stream may outlive the key it was opened with."""

EventT = TypeVar("EventT")

_log = structlog.stdlib.get_logger(__name__)


class EventStream(Answer):
    """Sends what an async generator yields. When the caller goes away the generator is closed."""

    def __init__(
        self,
        call: Call[Any],
        events: AsyncIterator[Any],
        *,
        terminal: type | tuple[type, ...] | None = None,
        detached: bool = False,
    ) -> None:
        """`terminal` is the type of the event that ends it; `detached` work goes on without its caller."""
        self._call = call
        self._events = events
        self._terminal = terminal
        self._detached = detached
        self._is_started = False
        self._last_sent = 0.0
        self._was_revoked = False

    async def send_to(self, send: Send) -> None:
        self._last_sent = time.monotonic()
        ticker = asyncio.ensure_future(self._tick(send, _current_task().cancel))
        try:
            with contextlib.nullcontext() if self._detached else self._call.cancelled_on_disconnect():
                await self._pump(send)
        except asyncio.CancelledError:
            if not self._was_revoked:
                raise
            _current_task().uncancel()
            await self._fail(send, errors.AuthenticationError("unauthorized", detail="the api key was revoked"))
        finally:
            ticker.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _pump(self, send: Send) -> None:
        """Send all events. Raises what the generator raises as long as nothing was sent."""
        ended = self._terminal is None
        try:
            async with closing(self._events):
                async for event in self._events:
                    await self._send(send, frame(event))
                    if self._terminal is not None and isinstance(event, self._terminal):
                        ended = True
                        break
        except Exception as error:
            # A time limit is an outcome of the work, not a refusal of it: it is told in the stream, however early.
            if not self._is_started and not isinstance(error, TimedOutError):
                raise
            await self._fail(send, error)
            return
        if not ended:
            await self._fail(send, errors.InternalError("the stream ended before its last event"))
        elif not self._is_started:
            await self._start(send)

    async def _fail(self, send: Send, error: Exception) -> None:
        known = as_api_error(error)
        if known is None:
            _log.error("stream failed", exc_info=error)
            known = errors.InternalError("internal error")
        await self._send(send, b"event: error\ndata: %b\n\n" % ascii_json_bytes(error_body(known, "")))

    async def _send(self, send: Send, chunk: bytes) -> None:
        if not self._is_started:
            await self._start(send)
        self._last_sent = time.monotonic()
        await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _start(self, send: Send) -> None:
        self._is_started = True
        await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS]})

    async def _tick(self, send: Send, cancel: Callable[[], object]) -> None:
        """Beside the events: begin a stream that stays silent, keep it alive, and end it when its key is revoked."""
        control, caller = self._call.control, self._call.caller
        keepalive = control.settings.keepalive_seconds
        await asyncio.sleep(_FIRST_EVENT_SECONDS)
        if not self._is_started:
            await self._start(send)
        while True:
            await asyncio.sleep(min(keepalive / 2, REVOCATION_SECONDS))
            if not control.keys.is_current(caller):
                self._was_revoked = True
                cancel()
                return
            if time.monotonic() - self._last_sent >= keepalive / 2:
                await self._send(send, b": keepalive\n\n")


class PlainLine(NamedTuple):
    """An event whose data is bare text, for the clients that expect it so."""

    event: str
    text: str


def frame(event: msgspec.Struct | PlainLine) -> bytes:
    """One event on the wire."""
    if isinstance(event, PlainLine):
        text = " ".join(event.text.splitlines()).encode("utf-8", "replace")
        return (b"event: %b\n" % event.event.encode() if event.event else b"") + b"data: %b\n\n" % text
    data = json_bytes(event)
    if not data.isascii():
        data = ascii_json_bytes(event)
    name = event.__struct_config__.tag
    return b"event: %b\ndata: %b\n\n" % (str(name).encode(), data)


@contextlib.asynccontextmanager
async def closing(events: AsyncIterator[EventT]) -> AsyncGenerator[AsyncIterator[EventT]]:
    """Close a generator at the end of the block: what it does for nobody stops now, not when it is collected."""
    try:
        yield events
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task
