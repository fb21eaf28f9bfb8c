"""Changes found by looking: for directories in which others write, whom this sandbox's kernel does not see."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from contextlib import suppress

from cellbox.guest.channel import Refusal
from cellbox.guest.pending import Pending

_SECONDS = 1.0
_SHARE = 10
"""A look may take one part in so many of the time: a large tree is looked at less often."""
_MAX_ENTRIES = 20_000
_STATS_PER_TURN = 200

_State = tuple[int, int, int, int]
"""Inode, mode, size, time of the last change."""


class Polling:
    """Fills `pending` until it is closed."""

    def __init__(self, path: str, recursive: bool, pending: Pending) -> None:
        self._path = path
        self._recursive = recursive
        self._pending = pending
        self._known: dict[str, _State] = {}
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, path: str, recursive: bool, pending: Pending) -> Polling:
        """Take the first look. Raises `OSError`, and `Refusal` for a tree that is too large to look at."""
        polling = cls(path, recursive, pending)
        polling._known = await polling._look()
        polling._task = asyncio.get_running_loop().create_task(polling._poll())
        return polling

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _poll(self) -> None:
        pause = _SECONDS
        while True:
            await asyncio.sleep(pause)
            started = time.monotonic()
            try:
                found = await self._look()
            except Refusal:
                self._pending.add("overflow", self._path)
                found = self._known
            except OSError:
                self._pending.add("removed", self._path)
                self._pending.end()
                return
            self._compare(found)
            self._known = found
            pause = max(_SECONDS, _SHARE * (time.monotonic() - started))

    async def _look(self) -> dict[str, _State]:
        top = os.stat(self._path)
        if not stat.S_ISDIR(top.st_mode):
            return {self._path: _state(top)}
        found: dict[str, _State] = {}
        waiting = [self._path]
        while waiting:
            directory = waiting.pop()
            try:
                names = os.listdir(directory)
            except OSError:
                if directory == self._path:
                    raise
                continue
            for name in names:
                path = f"{directory.rstrip('/')}/{name}"
                with suppress(OSError):
                    status = os.lstat(path)
                    found[path] = _state(status)
                    if self._recursive and stat.S_ISDIR(status.st_mode):
                        waiting.append(path)
                if len(found) > _MAX_ENTRIES:
                    raise Refusal(
                        "invalid_request",
                        f"{self._path}: more than {_MAX_ENTRIES} files, which is too many to watch in a directory that "
                        "others may write to; watch a smaller one",
                    )
                if len(found) % _STATS_PER_TURN == 0:
                    await asyncio.sleep(0)
        return found

    def _compare(self, found: dict[str, _State]) -> None:
        gone = {state[0]: path for path, state in self._known.items() if path not in found}
        for path, state in found.items():
            old = self._known.get(path)
            is_directory = stat.S_ISDIR(state[1])
            if old is None or old[0] != state[0]:
                origin = gone.pop(state[0], None)
                if origin is not None:
                    self._pending.add("moved", origin, is_directory=is_directory, target=path)
                else:
                    self._pending.add("created" if old is None else "modified", path, is_directory=is_directory)
            elif old[1] != state[1]:
                self._pending.add("attributes", path, is_directory=is_directory)
            elif old != state and not is_directory:
                self._pending.add("modified", path)
        for path in gone.values():
            self._pending.add("removed", path, is_directory=stat.S_ISDIR(self._known[path][1]))


def _state(status: os.stat_result) -> _State:
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns
