"""Writing frames to a pipe without waiting for it. Both ends of a channel do it this way."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from itertools import islice

QUEUE_BYTES = 1024 * 1024
"""Of unsent frames, past which senders wait."""
_FRAMES_PER_WRITE = 16


class PipeWriter:
    """Queues frames for a non-blocking descriptor and writes what the pipe takes. Made inside the running loop."""

    __slots__ = ("_descriptor", "_is_waiting", "_loop", "_on_broken", "_queue", "_room", "_size")

    def __init__(self, descriptor: int, on_broken: Callable[[], None]) -> None:
        """`on_broken` is told when nobody reads the pipe any more."""
        self._descriptor = descriptor
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._room = asyncio.Event()
        self._room.set()
        self._is_waiting = False

    def write(self, frame: bytes) -> None:
        """Queue one frame, and write what the pipe takes now."""
        self._queue.append(frame)
        self._size += len(frame)
        if not self._is_waiting:
            self._flush()

    @property
    def has_room(self) -> bool:
        """False when the queue is so long that a sender should wait."""
        return self._size < QUEUE_BYTES

    async def wait_for_room(self) -> None:
        if not self.has_room:
            self._room.clear()
            await self._room.wait()

    def close(self) -> None:
        """Drop what is queued and let every sender go on. The descriptor is left to its owner."""
        self._loop.remove_writer(self._descriptor)
        self._queue.clear()
        self._size = 0
        self._room.set()

    def _flush(self) -> None:
        queue = self._queue
        while queue:
            try:
                written = os.writev(self._descriptor, list(islice(queue, _FRAMES_PER_WRITE)))
            except BlockingIOError:
                break
            except OSError:
                self._on_broken()
                return
            self._size -= written
            while written:
                head = queue[0]
                if written < len(head):
                    queue[0] = head[written:]
                    break
                written -= len(head)
                queue.popleft()
        if self.has_room:
            self._room.set()
        if bool(queue) != self._is_waiting:
            self._is_waiting = bool(queue)
            if queue:
                self._loop.add_writer(self._descriptor, self._flush)
            else:
                self._loop.remove_writer(self._descriptor)
