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

    __slots__ = ("_descriptor", "_held", "_is_waiting", "_loop", "_on_broken", "_queue", "_room", "_size")

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
        self._held: list[bytes] | None = None

    def write(self, frame: bytes) -> None:
        """Queue one frame, and write what the pipe takes now."""
        self._size += len(frame)
        if self._held is not None:
            self._held.append(frame)
            return
        self._queue.append(frame)
        if not self._is_waiting:
            self._flush()

    @property
    def has_room(self) -> bool:
        """False when the queue is so long that a sender should wait."""
        return self._size < QUEUE_BYTES

    def hold(self) -> None:
        """Keep back what is written from now on, so that a checkpoint finds no frame half sent. Idempotent."""
        if self._held is None:
            self._held = []

    def release(self, *, drop: bool = False) -> None:
        """Undo `hold`: send what was kept back, or drop it. Idempotent."""
        held, self._held = self._held or [], None
        if drop:
            self._size -= sum(map(len, held))
            held = []
        self._queue += held
        if not self._is_waiting:
            self._flush()

    async def wait_for_room(self) -> None:
        """Wait while the queue is long, or held back."""
        while not self.has_room or self._held is not None:
            self._room.clear()
            await self._room.wait()

    def close(self) -> None:
        """Drop what is queued and let every sender go on. The descriptor is left to its owner."""
        self._loop.remove_writer(self._descriptor)
        self._queue.clear()
        self._size = 0
        self._held = None
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
