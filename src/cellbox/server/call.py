"""One request on its way through the server: everything a handler may know of it."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from starlette.types import Receive, Send

from cellbox import errors
from cellbox.control.keys import Caller

if TYPE_CHECKING:
    from cellbox.control.control import Control
    from cellbox.control.sandbox import LiveSandbox
    from cellbox.server.metrics import Metrics
    from cellbox.server.peer import Peer
    from cellbox.server.websocket import WebSocket

BodyT = TypeVar("BodyT")


class Answer(abc.ABC):
    """What a handler returns when it is not simply a value to be sent as JSON."""

    @abc.abstractmethod
    async def send_to(self, send: Send) -> None:
        """Send status, headers and the whole body. May raise as long as nothing was sent."""


class CallerGone(Exception):  # noqa: N818 - nobody is there to be told of an error
    """The caller went away before its request was complete."""


class Call(Generic[BodyT]):
    """One authenticated request with its decoded body."""

    __slots__ = (
        "body", "caller", "control", "headers", "metrics", "parameters", "peer", "query", "receive", "websocket_",
    )  # fmt: skip

    def __init__(
        self,
        *,
        control: Control,
        caller: Caller,
        parameters: dict[str, str],
        query: dict[str, str],
        headers: dict[bytes, bytes],
        body: BodyT,
        receive: Receive,
        peer: Peer | None,
        metrics: Metrics,
        websocket: WebSocket | None = None,
    ) -> None:
        self.control = control
        self.caller = caller
        self.parameters = parameters
        self.query = query
        self.headers = headers
        self.body = body
        self.receive = receive
        self.peer = peer
        self.metrics = metrics
        self.websocket_ = websocket

    @property
    def websocket(self) -> WebSocket:
        """The connection, of an operation that is a WebSocket; the handler has to accept it."""
        assert self.websocket_ is not None, "no WebSocket"
        return self.websocket_

    def sandbox(self) -> LiveSandbox:
        """The sandbox named in the path; unknown unless it is the caller's own."""
        return self.control.sandboxes.find(self.caller.owner, self.parameters["sandbox_id"])

    def flag(self, name: str, default: bool = False) -> bool:
        """A yes-or-no query parameter: `1`, `true`, `0`, `false`."""
        value = self.query.get(name)
        if value is None:
            return default
        if value.lower() in ("1", "true"):
            return True
        if value.lower() in ("0", "false"):
            return False
        raise errors.InvalidRequestError(f"query parameter {name!r} must be true or false, not {value[:40]!r}")

    def number(self, name: str, default: int | None = None, *, base: int = 10) -> int | None:
        """A whole number, not negative, from the query."""
        value = self.query.get(name)
        if value is None:
            return default
        try:
            number = int(value, base) if len(value) <= 20 else -1
        except ValueError:
            number = -1
        if number < 0:
            kind = "an octal number" if base == 8 else "a whole number"
            raise errors.InvalidRequestError(f"query parameter {name!r} must be {kind}, not {value[:40]!r}")
        return number

    async def chunks(self, limit: int | None = None) -> AsyncIterator[bytes]:
        """The raw body as it arrives; nothing is read ahead of what is asked for.

        Raises `TooLargeError` beyond `limit` and `CallerGone` when the caller goes away before its end.
        """
        received = 0
        check_length(self.headers, limit)
        while True:
            message: Any = await self.receive()
            if message["type"] != "http.request":
                raise CallerGone
            chunk: bytes = message.get("body", b"")
            received += len(chunk)
            if limit is not None and received > limit:
                raise too_large(limit)
            if chunk:
                yield chunk
            if not message.get("more_body", False):
                return

    @contextmanager
    def cancelled_on_disconnect(self) -> Generator[None]:
        """Cancel what happens inside when the caller goes away: nobody is left to want it."""
        peer, task = self.peer, asyncio.current_task()
        if peer is None or task is None:
            yield
            return
        peer.on_lost(task.cancel)
        try:
            yield
        finally:
            peer.on_lost(None)


def check_length(headers: dict[bytes, bytes], limit: int | None) -> None:
    """Refuse a body that announces itself as too large before any of it is read."""
    length = headers.get(b"content-length")
    if limit is not None and length is not None and length.isdigit() and int(length) > limit:
        raise too_large(limit)


def too_large(limit: int) -> errors.TooLargeError:
    return errors.TooLargeError(f"the body exceeds its limit of {limit} bytes", details={"limit": limit})
