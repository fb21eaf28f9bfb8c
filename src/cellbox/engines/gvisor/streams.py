"""The pipes that become a guest's standard streams."""

from __future__ import annotations

import contextlib
import fcntl
import os

from cellbox.engines.base import Channel
from cellbox.engines.gvisor.launch import Streams

_PIPE_BYTES = 256 * 1024
"""A quarter of a megabyte in flight each way: fewer wake-ups for large outputs than the usual 64 KiB."""

_CONSOLE_LIMIT = 4000


class Pipes:
    """The guest's three streams: our ends, and its own until it has them."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        guest_in, writer = self._pipe(_PIPE_BYTES)
        reader, guest_out = self._pipe(_PIPE_BYTES)
        console, guest_err = self._pipe(None)
        self.streams = Streams(stdin=guest_in, stdout=guest_out, stderr=guest_err)
        self.channel = Channel(reader=reader, writer=writer, console=console)
        for descriptor in (reader, writer, console):
            os.set_blocking(descriptor, False)  # a flag of our end alone: the guest's end is another open file

    def _pipe(self, size: int | None) -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC)
        self._open.update(ends)
        if size is not None:
            with contextlib.suppress(OSError):  # an ordinary user may have used up the share of larger pipes
                fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, size)
        return ends

    def close_guest_ends(self) -> None:
        for descriptor in (self.streams.stdin, self.streams.stdout, self.streams.stderr):
            self._close(descriptor)

    def close(self) -> None:
        for descriptor in list(self._open):
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.discard(descriptor)
            os.close(descriptor)

    def complaint(self) -> str:
        """What runsc or the guest wrote to stderr, the end of it."""
        said = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.channel.console, 1 << 16):
                said = (said + chunk)[-_CONSOLE_LIMIT:]
        return said.decode("utf-8", "replace").strip()
