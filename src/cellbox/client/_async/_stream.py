"""Events of something that runs now, one after the other."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Generic, Self, TypeVar

EventT = TypeVar("EventT")


class AsyncEventStream(Generic[EventT], AsyncIterator[EventT]):
    """Iterate over it to get the events. Leaving it early stops what runs; use `async with` to do so at once.

    The request is sent when the first event is asked for.

    Raises (while iterating):
        ConnectionLostError: The stream ended before the event that says how it came out.
        APIError: The daemon refused or failed.
    """

    def __init__(self, events: AsyncGenerator[EventT, None]) -> None:
        self._events = events

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventT:
        return await self._events.__anext__()

    async def aclose(self) -> None:
        """Stop listening. The daemon then stops the command or cell."""
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
