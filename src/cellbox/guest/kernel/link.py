"""PID 1's end of one kernel: its packets and the two pipes behind its output, merged in the order they were written.

Reads only while there is room, so a kernel that floods blocks in its own write. Between cells it keeps a little of what
background work prints and counts the rest, so that nothing of the user's blocks because nobody asks.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from typing import NamedTuple

from cellbox.guest.kernel import protocol
from cellbox.wire import frames
from cellbox.wire.frames import DataChannel, Kind, ProtocolError

_ROOM_BYTES = 256 * 1024
_ROOM_WHILE_ENDING = 8 * 1024 * 1024
"""An interrupted kernel must be able to finish though nobody takes its output: its own buffers hold less than this."""
_LATE_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_DRAIN_BYTES = 4 * 1024 * 1024
_PACKETS_AT_ONCE = 4


class Item(NamedTuple):
    """One thing a kernel said: output (`Kind.DATA`), an event's JSON (`MESSAGE`) or an answer's (`CLOSE`)."""

    kind: Kind
    payload: bytearray | bytes
    channel: DataChannel = DataChannel.MAIN


class _Pipe:
    __slots__ = ("buffer", "channel", "fd", "is_blocked", "is_held")

    def __init__(self, fd: int, channel: DataChannel) -> None:
        self.fd = fd
        self.channel = channel
        self.buffer = bytearray()
        self.is_held = False  # a mark was read whose packet has not come yet
        self.is_blocked = False  # and more came after the mark, which stays in the pipe meanwhile


class Link:
    """The connection to one kernel. Needs the running loop."""

    def __init__(self, channel: socket.socket, pipes: tuple[int, int], token: bytes) -> None:
        self._channel = channel
        self._pipes = tuple(map(_Pipe, pipes, (DataChannel.STDOUT, DataChannel.STDERR)))
        self.token = token
        self._received = 0
        self._assembler = frames.MessageAssembler()
        self._items: deque[Item] = deque()
        self._bytes = 0
        self._room = _ROOM_BYTES
        self._is_idle = False
        self._is_finished = False
        self._left_out = 0
        self._changed = asyncio.Event()
        self._reading: set[int] = set()
        self.peer_pid = 0
        """The kernel's pid in our own namespace, known from its first packet."""
        self.has_answered = False
        """True when an answer has arrived, though it may still wait behind output."""
        self.is_closed = False
        """True when the kernel hung up or broke the protocol."""
        self._loop = asyncio.get_running_loop()
        self.milestone: asyncio.Future[None] = self._loop.create_future()
        """Resolves at the first of the two."""
        channel.setblocking(False)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        for pipe in self._pipes:
            os.set_blocking(pipe.fd, False)
        self._update_readers()

    async def request(self, document: bytes) -> None:
        """Send a request. Raises `OSError` when the kernel is gone."""
        self._leave_idle()
        self.has_answered = False
        if not self.is_closed and self.milestone.done():
            self.milestone = self._loop.create_future()
        for start in range(0, max(len(document), 1), protocol.PACKET_BYTES):
            end = start + protocol.PACKET_BYTES
            more = frames.MORE if end < len(document) else 0
            await self._send(frames.encode(Kind.OPEN, 0, document[start:end], more))

    async def next(self) -> Item | None:
        """Return what comes next; None when all was returned and `finish` was called."""
        while not self._items:
            if self._is_finished:
                return None
            self._changed.clear()
            await self._changed.wait()
        item = self._items.popleft()
        self._bytes -= len(item.payload)
        if self._bytes < self._room // 2:
            self._update_readers()
        return item

    def late_bytes(self) -> tuple[int, int]:
        """Return how many bytes of stdout and stderr wait that were written between cells; before `request`."""
        self._leave_idle()
        counts = {DataChannel.STDOUT: 0, DataChannel.STDERR: 0}
        for item in self._items:
            if item.kind == Kind.DATA:
                counts[item.channel] += len(item.payload)
        return counts[DataChannel.STDOUT], counts[DataChannel.STDERR]

    def become_idle(self) -> None:
        """No cell runs: keep a little of what still comes, and drop the rest."""
        self._is_idle = True
        self._room = _ROOM_BYTES
        self._update_readers()

    def make_room(self) -> None:
        """Read on, so that the kernel can end what it does."""
        self._room = _ROOM_WHILE_ENDING
        self._update_readers()

    def finish(self) -> None:
        """The kernel has ended: take what it wrote before, and let go."""
        self._room = 1 << 62
        try:
            while not self.is_closed and self._read_packet():
                pass
        except (ProtocolError, struct.error):
            pass
        for pipe in self._pipes:
            for _ in range(_DRAIN_BYTES // _READ_BYTES):
                if not self._read_pipe(pipe):
                    break
            self._deliver(pipe, is_last=True)
        self._is_finished = True
        self._end()

    def close(self) -> None:
        """Let go of every descriptor."""
        self._end()
        self._channel.close()
        for pipe in self._pipes:
            if pipe.fd >= 0:
                os.close(pipe.fd)
                pipe.fd = -1

    # ------------------------------------------------------------------------------------------------ reading

    def _on_channel(self) -> None:
        try:
            for _ in range(_PACKETS_AT_ONCE):
                if self._is_full or not self._read_packet():
                    break
        except (ProtocolError, struct.error):
            self._end()  # hostile or damaged: nothing that it says later can be trusted
        self._update_readers()

    def _on_pipe(self, pipe: _Pipe) -> None:
        if pipe.is_held:
            pipe.is_blocked = True
        else:
            self._read_pipe(pipe)
            self._deliver(pipe)
        self._update_readers()

    def _read_packet(self) -> bool:
        try:
            if self.peer_pid:
                packet = self._channel.recv(protocol.MAX_PACKET)
            else:
                packet, ancillary, _, _ = self._channel.recvmsg(protocol.MAX_PACKET, socket.CMSG_SPACE(12))
                self.peer_pid = _sender(ancillary) or -1
        except BlockingIOError:
            return False
        except OSError:
            packet = b""
        if not packet:
            self._end()
            return False
        number, data = protocol.read_packet(packet)
        if number <= self._received:  # sent again after an interrupt
            return True
        for pipe in self._pipes:
            self._advance(pipe, number)
        self._received = number
        reader = frames.FrameReader()
        for frame in reader.feed(data):
            self._take(frame)
        if not reader.is_empty:
            raise ProtocolError("a packet that ends inside a frame")
        return True

    def _take(self, frame: frames.Frame) -> None:
        if frame.kind == Kind.DATA:
            channel = DataChannel.STDERR if frame.flags == DataChannel.STDERR else DataChannel.STDOUT
            self._push(Kind.DATA, frame.payload, channel)
            return
        if frame.kind not in (Kind.MESSAGE, Kind.CLOSE):
            raise ProtocolError(f"a frame of kind {frame.kind} from a kernel")
        document = self._assembler.add(frame)
        if document is None:
            return
        if frame.kind == Kind.CLOSE:
            if self._is_idle:
                return
            self.has_answered = True
            self._reach_milestone()
        self._push(Kind(frame.kind), document)

    def _advance(self, pipe: _Pipe, number: int) -> None:
        """Deliver what the pipe holds from before packet `number`."""
        while True:
            found = protocol.read_mark(pipe.buffer, self.token)
            if found is not None and found[2] >= 0:
                begin, end, marked = found
                self._push(Kind.DATA, bytes(pipe.buffer[:begin]), pipe.channel)
                del pipe.buffer[:end]
                if marked >= number:
                    break
                continue
            keep = found[0] if found is not None else len(pipe.buffer)
            self._push(Kind.DATA, bytes(pipe.buffer[:keep]), pipe.channel)
            del pipe.buffer[:keep]
            if not self._read_pipe(pipe):
                break
        pipe.is_held = pipe.is_blocked = False
        self._received = max(self._received, number - 1)
        self._deliver_later(pipe)

    def _deliver_later(self, pipe: _Pipe) -> None:
        # What follows the mark was written after the packet, and so comes after its frames.
        if pipe.buffer:
            self._loop.call_soon(self._deliver, pipe)

    def _deliver(self, pipe: _Pipe, *, is_last: bool = False) -> None:
        """Deliver what the pipe holds, up to a mark whose packet is still to come."""
        while pipe.buffer:
            found = protocol.read_mark(pipe.buffer, self.token)
            keep = found[0] if found is not None else len(pipe.buffer)
            self._push(Kind.DATA, bytes(pipe.buffer[:keep]), pipe.channel)
            del pipe.buffer[:keep]
            if found is None:
                return
            _begin, end, number = found
            is_stale = 0 <= number <= self._received
            if not is_stale and not is_last:
                pipe.is_held = number > self._received
                return
            del pipe.buffer[: end - keep]

    def _read_pipe(self, pipe: _Pipe) -> bool:
        try:
            data = os.read(pipe.fd, _READ_BYTES) if pipe.fd >= 0 else b""
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            if pipe.fd >= 0:
                self._stop_reading(pipe.fd)
                os.close(pipe.fd)
                pipe.fd = -1
            return False
        pipe.buffer += data
        return True

    def _push(self, kind: Kind, payload: bytes, channel: DataChannel = DataChannel.MAIN) -> None:
        if not payload and kind == Kind.DATA:
            return
        if self._is_idle and self._bytes + len(payload) > _LATE_BYTES:
            self._left_out += len(payload)
            return
        self._bytes += len(payload)
        last = self._items[-1] if self._items else None
        if kind == Kind.DATA and last is not None and last[::2] == (kind, channel) and len(last.payload) < 65536:
            last.payload.extend(payload)  # type: ignore[union-attr] - DATA items hold bytearrays
        else:
            self._items.append(Item(kind, bytearray(payload) if kind == Kind.DATA else payload, channel))
        self._changed.set()

    def _leave_idle(self) -> None:
        self._is_idle = False
        if self._left_out:
            note = f"[{self._left_out:,} more bytes that background work wrote since the last cell were left out]\n"
            self._left_out = 0
            self._push(Kind.DATA, note.encode(), DataChannel.STDERR)

    # ------------------------------------------------------------------------------------------------ readiness

    @property
    def _is_full(self) -> bool:
        return self._bytes >= self._room and not self._is_idle

    def _update_readers(self) -> None:
        """Watch exactly those descriptors whose data has somewhere to go."""
        wanted: dict[int, tuple[object, ...]] = {}
        if not self.is_closed and not self._is_full:
            wanted[self._channel.fileno()] = (self._on_channel,)
            for pipe in self._pipes:
                if pipe.fd >= 0 and not pipe.is_blocked:
                    wanted[pipe.fd] = (self._on_pipe, pipe)
        for fd in self._reading - wanted.keys():
            self._stop_reading(fd)
        for fd in wanted.keys() - self._reading:
            self._loop.add_reader(fd, *wanted[fd])  # type: ignore[arg-type]
            self._reading.add(fd)

    def _stop_reading(self, fd: int) -> None:
        if fd in self._reading:
            self._reading.discard(fd)
            self._loop.remove_reader(fd)

    def _end(self) -> None:
        self.is_closed = True
        self._reach_milestone()
        self._changed.set()
        for fd in list(self._reading):
            self._stop_reading(fd)

    def _reach_milestone(self) -> None:
        if not self.milestone.done():
            self.milestone.set_result(None)

    async def _send(self, packet: bytes) -> None:
        while True:
            try:
                self._channel.send(packet)
            except BlockingIOError:
                ready = asyncio.Event()
                self._loop.add_writer(self._channel.fileno(), ready.set)
                try:
                    await ready.wait()
                finally:
                    self._loop.remove_writer(self._channel.fileno())
            else:
                return


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) >= 4:
            return int(struct.unpack("i", data[:4])[0])
    return 0
