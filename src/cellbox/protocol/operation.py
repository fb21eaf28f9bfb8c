"""What an HTTP operation is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

BodyT = TypeVar("BodyT")
ResultT = TypeVar("ResultT")

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[BodyT, ResultT]):
    """One request and its answer.

    `body` and `result` are the types of the JSON documents; `bytes` stands for a raw body, `None` for none at all.
    """

    name: str
    method: Method
    path: str
    summary: str
    body: type[BodyT]
    result: type[ResultT]
    status: int = 200
    query: tuple[str, ...] = ()
    """Names of the query parameters."""
    scope: Literal["public", "user", "admin"] = "user"
    """Who may call it: anyone, a holder of any key, a holder of an admin key."""
    events: Any = None
    """For a stream: the union of its events; the answer is `text/event-stream`. The last one ends the stream.
    For a WebSocket: what the server sends."""
    messages: Any = None
    """For a WebSocket: the union of what the client sends. JSON documents are text messages, `bytes` binary ones."""

    @property
    def is_websocket(self) -> bool:
        return self.messages is not None
