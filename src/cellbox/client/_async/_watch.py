"""Changes of files as they happen."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from cellbox.client._async._stream import AsyncEventStream
from cellbox.protocol.files import FileChange, WatchEnded, WatchEvent, WatchStarted


class AsyncFileWatch(AsyncEventStream[FileChange]):
    """Iterate over it to get the changes; `async with` begins the watch before the block and ends it after.

    Raises (while iterating):
        ConnectionLostError: The connection broke: changes may have been missed.
        APIError: The daemon refused or failed.
    """

    def __init__(self, events: AsyncEventStream[WatchEvent]) -> None:
        self._source = events
        self._is_started = False

    async def __anext__(self) -> FileChange:
        await self._start()
        event = await anext(self._source)
        while isinstance(event, WatchStarted):
            event = await anext(self._source)
        if isinstance(event, WatchEnded):
            raise StopAsyncIteration
        return event

    async def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            await anext(self._source)

    async def aclose(self) -> None:
        """Stop watching."""
        await self._source.aclose()

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
