"""A kernel's way out: text, displays and answers in one order, through one `Outbox`.

Output shows as it is written: a line goes out at once while lines are few, and in pieces of 64 KiB or every 20 ms when
they come in a burst. A forked child has no way out of its own: it writes straight to its file descriptors 1 and 2.
"""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections import deque

from cellbox.guest.kernel import protocol
from cellbox.wire.frames import MORE, DataChannel, Kind, encode

FLUSH_BYTES = 64 * 1024
_TICK_SECONDS = 0.02
_BURST = 64  # lines that go out one by one; past that they are collected
_REFILL_PER_SECOND = 1000.0


class Outbox:
    """Everything that leaves a kernel. Safe for threads, for signal handlers that raise or print, and for forks."""

    def __init__(self, channel: socket.socket, pipes: tuple[int, int], token: bytes) -> None:
        self._channel = channel
        self._pipes = pipes
        self._token = token
        self._number = 0
        self._packets: deque[tuple[int, bytes]] = deque()
        self._frames: list[bytes] = []
        self.pending: dict[DataChannel, list[str | bytes]] = {DataChannel.STDOUT: [], DataChannel.STDERR: []}
        """Output not yet made into frames. Only `_cut` takes from it; anyone may append to `burst`."""
        self.size = 0
        self.current = DataChannel.STDOUT
        """The channel that was written to last."""
        self.burst: list[str | bytes] | None = None
        """The `pending` of `current` while lines come too fast to be sent one by one, else None."""
        self._has_sent = False
        self._lock = threading.RLock()
        self._tokens = float(_BURST)
        self._refilled = 0.0
        self._late = threading.Event()
        self._ticker: threading.Thread | None = None
        self._is_ending = False
        self.is_child = False
        """True in a process forked from the kernel."""
        os.register_at_fork(before=self._prepare_fork, after_in_child=self._become_child)

    @property
    def ticker(self) -> threading.Thread | None:
        return self._ticker

    def write(self, channel: DataChannel, data: str | bytes) -> None:
        """Take output, and send it now or within a tick."""
        if self.is_child:
            _write_all(channel, data if isinstance(data, bytes) else _encode_text(data))
            return
        with self._lock:
            if channel != self.current:
                self._cut()
                self.current = channel
                if self.burst is not None:
                    self.burst = self.pending[channel]
            self.pending[channel].append(data)
            self.size += len(data)
            is_line = data[-1:] in ("\n", "\r", b"\n", b"\r")
            if self.size >= FLUSH_BYTES or (is_line and self._may_send_line()):
                self.flush()
            elif data:
                self._send_later()

    def message(self, document: bytes, *, now: bool) -> None:
        """Take an event, whole."""
        if self.is_child:
            return
        with self._lock:
            self._cut()
            self._add_json(Kind.MESSAGE, document)
            if now:
                self.flush()

    def answer(self, document: bytes) -> None:
        """Send the answer to the request in hand, after everything else."""
        with self._lock:
            self._cut()
            self._add_json(Kind.CLOSE, document)
            self._tokens = float(_BURST)
            self.burst = None
            self.flush()

    def flush(self) -> None:
        """Send what there is."""
        if self.is_child:
            return
        with self._lock:
            self._cut()
            # Straight-line stores only between taking frames and numbering them: a signal handler that raises comes
            # after a call, and then either nothing has happened or the packet waits in `_packets`.
            while self._frames:
                count, size = 1, len(self._frames[0])
                while count < len(self._frames) and size + len(self._frames[count]) <= protocol.PACKET_BYTES:
                    size += len(self._frames[count])
                    count += 1
                packet = (self._number + 1, b"".join(self._frames[:count]))
                rest = self._frames[count:]
                self._packets.append(packet)
                self._frames, self._number = rest, packet[0]
            while self._packets:
                number, frames = self._packets[0]
                for pipe in self._pipes:
                    os.write(pipe, protocol.mark(self._token, number))
                self._channel.send(protocol.number_packet(number, frames))
                if self._packets and self._packets[0][0] == number:
                    self._packets.popleft()

    def flush_burst(self) -> None:
        """Send what a burst has brought, and have it last for another tick."""
        self._has_sent = True
        self.flush()

    def _cut(self) -> None:
        """Make frames of the output so far, the channel written to last at the end."""
        self.size = 0
        for channel in (DataChannel(3 - self.current), self.current):
            # Others may append meanwhile, so the list stays the same and only what was seen is taken out.
            parts = self.pending[channel]
            count = len(parts)
            if not count:
                continue
            try:
                data = _encode_text("".join(parts[:count]))  # type: ignore[arg-type]
            except TypeError:
                data = b"".join(part if isinstance(part, bytes) else _encode_text(part) for part in parts[:count])
            frames = [
                encode(Kind.DATA, 0, data[start : start + protocol.PACKET_BYTES], channel)
                for start in range(0, len(data), protocol.PACKET_BYTES)
            ]
            del parts[:count]
            self._frames += frames

    def _add_json(self, kind: Kind, document: bytes) -> None:
        for start in range(0, max(len(document), 1), protocol.PACKET_BYTES):
            end = start + protocol.PACKET_BYTES
            self._frames.append(encode(kind, 0, document[start:end], MORE if end < len(document) else 0))

    def _may_send_line(self) -> bool:
        if self.burst is not None:
            return False
        now = time.monotonic()
        self._tokens = min(self._tokens + (now - self._refilled) * _REFILL_PER_SECOND, _BURST)
        self._refilled = now
        if self._tokens < 1:
            self.burst = self.pending[self.current]
            return False
        self._tokens -= 1
        return True

    def _send_later(self) -> None:
        if self._ticker is None:
            self._ticker = threading.Thread(target=self._tick, name="cellbox-output", daemon=True)
            self._ticker.start()
        if not self._late.is_set():
            self._late.set()

    def _tick(self) -> None:
        while True:
            self._late.wait()
            if self._is_ending:
                return
            time.sleep(_TICK_SECONDS)
            self._late.clear()
            if self._is_ending:
                return
            # A burst is over when a whole tick brought less than one packet; until then a line costs a microsecond.
            if self._has_sent:
                self._has_sent = False
                self._late.set()
            else:
                self.burst = None
            try:
                self.flush()
            except OSError:
                return

    def _prepare_fork(self) -> None:
        """Send what there is, and end our own thread: Python warns of a fork in a process that has more than one.

        The next output that can't go out at once starts it anew.
        """
        if self.is_child:
            return
        self.flush()
        ticker = self._ticker
        if ticker is not None and ticker is not threading.current_thread():
            self._is_ending = True
            self._late.set()
            ticker.join()
            with self._lock:
                self._is_ending, self._ticker = False, None
                self._late.clear()
                self.burst = None  # in a burst nobody asks for the thread
                self.flush()  # what another thread wrote meanwhile

    def _become_child(self) -> None:
        self.is_child = True
        self._lock = threading.RLock()
        self.burst = None
        for parts in self.pending.values():
            parts.clear()
        self._frames, self._packets = [], deque()
        self._channel.close()
        for pipe in self._pipes:
            os.close(pipe)


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _write_all(channel: DataChannel, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(int(channel), view) :]


class _Bytes(io.RawIOBase):
    """`sys.stdout.buffer`."""

    def __init__(self, outbox: Outbox, channel: DataChannel) -> None:
        self._outbox, self._channel = outbox, channel

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._channel)

    def write(self, data) -> int:
        data = bytes(data)
        self._outbox.write(self._channel, data)
        return len(data)

    def flush(self) -> None:
        self._outbox.flush()

    def close(self) -> None:
        self.flush()


class CellStream(io.TextIOBase):
    """`sys.stdout` and `sys.stderr` of a kernel."""

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None
    line_buffering = True
    write_through = False
    mode = "w"

    def __init__(self, outbox: Outbox, channel: DataChannel) -> None:
        self._outbox, self._channel = outbox, channel
        self._pending = outbox.pending[channel]
        self._buffer = _Bytes(outbox, channel)
        self.name = f"<{channel.name.lower()}>"

    @property
    def buffer(self) -> _Bytes:
        return self._buffer

    def write(self, text: str) -> int:
        outbox = self._outbox
        if outbox.burst is self._pending and text.__class__ is str:
            self._pending.append(text)  # as little as can be: 100 MB of short lines must not take a minute
            count = len(text)
            outbox.size = size = outbox.size + count
            if size >= FLUSH_BYTES:
                outbox.flush_burst()
            return count
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        outbox.write(self._channel, text)
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._channel)

    def isatty(self) -> bool:
        return False

    def flush(self) -> None:
        self._outbox.flush()

    def reconfigure(self, **_options) -> None:
        """Accepted, because scripts call it; nothing to change."""

    def close(self) -> None:
        """Flushes only: a script that closes its standard output must not silence the next cell."""
        self.flush()

    def detach(self):
        return self._buffer
