"""A command's standard streams, carried between its pipes and the channel with back-pressure in both directions."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
import time
from collections.abc import Callable

from cellbox.guest.channel import Stream
from cellbox.wire.frames import DataChannel

_READ_BYTES = 64 * 1024


class Idle:
    """Calls back when nothing was printed for a while. Rearmed at most once per period, not per output."""

    def __init__(self, seconds: float | None, callback: Callable[[], None]) -> None:
        self._seconds = seconds
        self._callback = callback
        self._last = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        if seconds is not None:
            self._arm(seconds)

    def touch(self) -> None:
        self._last = time.monotonic()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, delay: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(delay, 0), self._check)

    def _check(self) -> None:
        assert self._seconds is not None
        left = self._last + self._seconds - time.monotonic()
        if left > 0:
            self._arm(left)
        else:
            self._callback()


class Output:
    """Carries one pipe to the stream, and reads no more than it can send: so a full pipe holds back the writer."""

    def __init__(self, descriptor: int, channel: DataChannel, stream: Stream, idle: Idle) -> None:
        self.descriptor = descriptor
        self._channel = channel
        self._stream = stream
        self._idle = idle
        self._left: int | None = None
        self._wake: asyncio.Future[None] | None = None

    def finish(self) -> None:
        """Send what is in the pipe now and no more, since a background child may write for ever."""
        self._left = _bytes_waiting(self.descriptor)
        self._resume()

    async def carry(self) -> None:
        while self._left is None or self._left > 0:
            size = _READ_BYTES if self._left is None else min(self._left, _READ_BYTES)
            try:
                data = os.read(self.descriptor, size)
            except BlockingIOError:
                if self._left is not None:
                    return
                await self._wait()
                continue
            if not data:
                return
            if self._left is not None:
                self._left -= len(data)
            self._idle.touch()
            await self._stream.send(data, self._channel)

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        loop.add_reader(self.descriptor, self._resume)
        try:
            await self._wake
        finally:
            loop.remove_reader(self.descriptor)
            self._wake = None

    def _resume(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def start_feeding(stream: Stream, descriptor: int) -> asyncio.Task[None]:
    """Carry input to the command; close the pipe when the input ends, or is cancelled, or nobody reads it any more."""

    async def feed() -> None:
        try:
            while data := await stream.receive():
                await _write(descriptor, data)
        except (BrokenPipeError, ConnectionAbortedError):
            pass

    task = asyncio.get_running_loop().create_task(feed())
    # A callback, because a task that is cancelled before its first step never reaches a `finally`.
    task.add_done_callback(lambda _: os.close(descriptor))
    return task


async def read_when_ready(descriptor: int) -> bytes:
    """Wait for bytes of a non-blocking descriptor. Empty at its end, which a terminal tells by an error."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            readable: asyncio.Future[None] = loop.create_future()
            loop.add_reader(descriptor, _set, readable)
            try:
                await readable
            finally:
                loop.remove_reader(descriptor)
        except OSError:
            return b""


async def _write(descriptor: int, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            writable: asyncio.Future[None] = loop.create_future()
            loop.add_writer(descriptor, _set, writable)
            try:
                await writable
            finally:
                loop.remove_writer(descriptor)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _bytes_waiting(descriptor: int) -> int:
    return struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0\0\0\0"))[0]
