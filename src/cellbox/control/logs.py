"""A sandbox's log: what its start command printed, and what guest and platform have to say. Bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Literal, NamedTuple

from cellbox.wire.messages import LogLine

LogStream = Literal["both", "stdout", "stderr"]
_MAX_BYTES = 1024 * 1024
_MAX_LINE_CHARACTERS = 8192


class _Line(NamedTuple):
    number: int
    stream: str
    text: str


class SandboxLog:
    """The last MiB of a sandbox's log. The platform's own lines count as `stderr`."""

    def __init__(self) -> None:
        self._lines: deque[_Line] = deque()
        self._bytes = 0
        self._next_number = 0
        self._changed = asyncio.Event()
        self._is_closed = False

    def add(self, line: LogLine) -> None:
        """Take one line or several; a line longer than 8192 characters is kept in pieces."""
        stream = "stdout" if line.stream == "stdout" else "stderr"
        for text in line.text.splitlines() or [""]:
            self._append(stream, text)

    def say(self, text: str) -> None:
        """Add a line of the platform's own."""
        self._append("stderr", f"[cellbox] {text}")

    def close(self) -> None:
        """End every `follow`."""
        self._is_closed = True
        self._changed.set()

    def text(self, stream: LogStream = "both", tail: int | None = None) -> str:
        """Return the kept lines, or the last `tail` of them."""
        lines = [line.text for line in self._matching(stream, 0)]
        if tail is not None:
            lines = lines[-tail:] if tail > 0 else []
        return "".join(f"{line}\n" for line in lines)

    async def follow(self, stream: LogStream = "both") -> AsyncIterator[str]:
        """Yield what is kept, then each line as it comes, until the sandbox is gone. Says so when lines were missed."""
        number = 0
        while True:
            oldest = self._lines[0].number if self._lines else number
            if oldest > number > 0:
                yield f"[cellbox] {oldest - number} lines were dropped here"
            lines, number = list(self._matching(stream, number)), self._next_number
            for line in lines:
                yield line.text
            if number < self._next_number:
                continue
            if self._is_closed:
                return
            self._changed.clear()
            await self._changed.wait()

    def _matching(self, stream: LogStream, from_number: int) -> Iterator[_Line]:
        for line in list(self._lines):
            if line.number >= from_number and stream in ("both", line.stream):
                yield line

    def _append(self, stream: str, text: str) -> None:
        for start in range(0, max(len(text), 1), _MAX_LINE_CHARACTERS):
            piece = text[start : start + _MAX_LINE_CHARACTERS]
            self._lines.append(_Line(self._next_number, stream, piece))
            self._next_number += 1
            self._bytes += len(piece) + 64
        while self._bytes > _MAX_BYTES:
            self._bytes -= len(self._lines.popleft().text) + 64
        self._changed.set()
