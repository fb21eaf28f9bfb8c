"""Binds handlers to the operations of `cellbox.protocol.operations`, and finds the one a request is for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from cellbox import errors
from cellbox.errors import APIError
from cellbox.protocol.operations import Operation
from cellbox.protocol.values import Value
from cellbox.server.answers import TimedOutError, render_error
from cellbox.server.call import Answer, Call

BodyT = TypeVar("BodyT")
ResultT = TypeVar("ResultT")

WEBSOCKET = "WEBSOCKET"
"""Stands for the method of a handshake, so that a path can have a WebSocket beside a GET."""
Handler = Callable[[Call[BodyT]], Awaitable[ResultT | Answer]]
ErrorRenderer = Callable[[APIError | TimedOutError, str], tuple[int, Value]]
"""Gives the status and the body for an error, and the request's id."""


@dataclass(frozen=True, slots=True)
class Route:
    """An operation, who answers it, and how its body is read."""

    operation: Operation[Any, Any]
    handler: Handler[Any, Any]
    prefixes: tuple[str, ...]
    decoder: msgspec.json.Decoder[Any] | None
    """None when the operation takes no JSON."""
    render_error: ErrorRenderer


class Handlers:
    """Collects the routes of one module, or of one wire, whose errors have a shape of their own."""

    def __init__(self, render_error: ErrorRenderer = render_error) -> None:
        self.routes: list[Route] = []
        self._render_error = render_error

    def handles(
        self, operation: Operation[BodyT, ResultT], *, prefixes: tuple[str, ...] = ("/v1",)
    ) -> Callable[[Handler[BodyT, ResultT]], Handler[BodyT, ResultT]]:
        """Bind a function to an operation: it is given the decoded body and returns the result, or an `Answer`."""

        def bind(handler: Handler[BodyT, ResultT]) -> Handler[BodyT, ResultT]:
            is_json = operation.body not in (bytes, type(None))
            decoder = msgspec.json.Decoder(operation.body) if is_json else None
            self.routes.append(Route(operation, handler, prefixes, decoder, self._render_error))
            return handler

        return bind


class _Node:
    """One part of a path. A literal name wins over a parameter, as in `/templates/builds`."""

    __slots__ = ("literals", "methods", "parameter")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.methods: dict[str, tuple[Route, tuple[str, ...]]] = {}


class RoutingTable:
    """Finds routes in a number of steps that depends on the path only."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            for prefix in route.prefixes:
                self._add(route, (prefix + route.operation.path).split("/")[1:])

    def _add(self, route: Route, parts: Sequence[str]) -> None:
        node, names = self._root, list[str]()
        for part in parts:
            if part.startswith("{"):
                names.append(part[1:-1])
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literals.setdefault(part, _Node())
        method = WEBSOCKET if route.operation.is_websocket else route.operation.method
        if node.methods.setdefault(method, (route, tuple(names)))[0] is not route:
            raise TypeError(f"two handlers for {route.operation.method} {route.operation.path}")

    def find(self, method: str, parts: Sequence[str]) -> tuple[Route, dict[str, str]]:
        """Return the route and the path's parameters. `method` is `WEBSOCKET` for a handshake.

        Raises a 404, 405 or 426 in the shape of every other error.
        """
        node, values = self._root, list[str]()
        for part in parts:
            following = node.literals.get(part)
            if following is None:
                following = node.parameter if part else None
                values.append(part)
            if following is None:
                raise errors.NotFoundError("no such route")
            node = following
        if (found := node.methods.get(method)) is not None:
            route, names = found
            return route, dict(zip(names, values, strict=True))
        if method == "GET" and WEBSOCKET in node.methods:
            raise errors.InvalidRequestError("this is a WebSocket", http_status=426, details={"upgrade": "websocket"})
        if node.methods:
            allowed = ", ".join(sorted({"GET" if name == WEBSOCKET else name for name in node.methods}))
            raise errors.InvalidRequestError(
                "method not allowed", http_status=405, detail=f"here: {allowed}", details={"allow": allowed}
            )
        raise errors.NotFoundError("no such route")
