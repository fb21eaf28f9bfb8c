"""Events of something that runs now, one after the other."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

EventT = TypeVar("EventT")


class EventStream(Generic[EventT], Iterator[EventT]):
    """Iterate over it to get the events. Leaving it early stops what runs; use `with` to do so at once.

    The request is sent when the first event is asked for.

    Raises (while iterating):
        ConnectionLostError: The stream ended before the event that says how it came out.
        APIError: The daemon refused or failed.
    """

    def __init__(self, events: Generator[EventT, None]) -> None:
        self._events = events

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> EventT:
        return self._events.__next__()

    def close(self) -> None:
        """Stop listening. The daemon then stops the command or cell."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

# Generated from _async/_stream.py by tools/unasync.py: edit that, and run it again.
