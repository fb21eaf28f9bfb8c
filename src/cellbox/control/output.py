"""Output as it is kept and shown: bounded, decoded, and honest about what was cut."""

from __future__ import annotations

import codecs
from collections import deque

OUTPUT_LIMIT_BYTES = 8 * 1024 * 1024
"""What is kept of each of a command's or cell's streams: half from its head, half from its tail."""


class ClippedOutput:
    """Collects a stream of any length in bounded memory: its head and its tail."""

    def __init__(self, limit_bytes: int = OUTPUT_LIMIT_BYTES) -> None:
        self._half = limit_bytes // 2
        self._head = bytearray()
        self._tail: deque[bytearray] = deque()
        self._block = self._half // 1024  # what comes in smaller pieces is put together: a guest may send single bytes
        self._tail_bytes = 0
        self.dropped_bytes = 0

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        if self._tail and len(self._tail[-1]) < self._block:
            self._tail[-1] += data
        else:
            self._tail.append(bytearray(data))
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= self._half:
            oldest = self._tail.popleft()
            self._tail_bytes -= len(oldest)
            self.dropped_bytes += len(oldest)

    def text(self) -> str:
        """Return what was kept, bad UTF-8 replaced, with a line in the middle that counts what was cut."""
        head, tail = self._head, b"".join(self._tail)
        if not self.dropped_bytes:
            return (head + tail).decode(errors="replace")
        notice = f"\n[… {self.dropped_bytes} bytes cut here; write to a file and read parts of it instead …]\n"
        return head.decode(errors="replace") + notice + tail.decode(errors="replace")


class TextChunks:
    """Turns chunks of bytes into chunks of text without splitting a character over two."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def end(self) -> str:
        return self._decoder.decode(b"", final=True)
