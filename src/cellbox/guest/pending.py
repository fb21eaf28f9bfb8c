"""Changes of files on their way to whoever watches: merged, in order, and bounded."""

from __future__ import annotations

import asyncio
from typing import Literal

from cellbox.wire.messages import FileChange

MAX_PENDING = 10_000
"""Changes that wait for a slow reader. Beyond it all are dropped and `overflow` is sent: look at the tree again."""

Kind = Literal["created", "modified", "attributes", "removed", "moved", "overflow"]


class Pending:
    """Filled by what sees the changes, emptied by what sends them."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.is_over = False
        """What was watched is gone, and nothing will follow."""
        self._changes: list[FileChange] = []
        self._last: dict[str, Kind] = {}

    def add(self, kind: Kind, path: str, *, is_directory: bool = False, target: str = "") -> None:
        last = self._last.get(path)
        if kind == last or (kind in ("modified", "attributes") and last in ("created", "modified")):
            return
        if len(self._changes) >= MAX_PENDING:
            self._changes, self._last = [], {}
            kind, path, is_directory, target = "overflow", path, False, ""
        self._last[path] = kind
        if target:
            self._last.pop(target, None)
        self._changes.append(FileChange(kind=kind, path=path, is_directory=is_directory, target=target))
        self.wake.set()

    def end(self) -> None:
        self.is_over = True
        self.wake.set()

    def take(self, count: int) -> list[FileChange]:
        batch, self._changes = self._changes[:count], self._changes[count:]
        if not self._changes:
            self._last.clear()
        return batch
