"""Changes of files as they happen."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from cellbox.client._sync._stream import EventStream
from cellbox.protocol.files import FileChange, WatchEnded, WatchEvent, WatchStarted


class FileWatch(EventStream[FileChange]):
    """Iterate over it to get the changes; `with` begins the watch before the block and ends it after.

    Raises (while iterating):
        ConnectionLostError: The connection broke: changes may have been missed.
        APIError: The daemon refused or failed.
    """

    def __init__(self, events: EventStream[WatchEvent]) -> None:
        self._source = events
        self._is_started = False

    def __next__(self) -> FileChange:
        self._start()
        event = next(self._source)
        while isinstance(event, WatchStarted):
            event = next(self._source)
        if isinstance(event, WatchEnded):
            raise StopIteration
        return event

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            next(self._source)

    def close(self) -> None:
        """Stop watching."""
        self._source.close()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

# Generated from _async/_watch.py by tools/unasync.py: edit that, and run it again.
