"""What PID 1, the zygote and a kernel say to one another.

A kernel has three ways out to PID 1: a packet socket for frames, and the pipes behind its descriptors 1 and 2, into
which anything may write (C code, subprocesses, forked children). Order between them is kept by *marks*: before the
kernel sends packet n it writes a mark with n into both pipes, so whatever lies before the mark was written before the
packet. A packet is a number and whole `cellbox.wire` frames; packets are atomic, so an exception in the midst of a send
loses no frame boundary, and a packet that is sent twice has the same number twice.

PID 1 sends requests the same way: OPEN frames with a JSON object, whose `op` is `boot` (become this sandbox's), `adopt`
(become this context's) or `run` (a cell). Each is answered by one CLOSE frame with a JSON object.
"""

from __future__ import annotations

import socket
import struct

SOCKET_BUFFER = 1024 * 1024
PACKET_BYTES = 96 * 1024
"""Largest payload of a frame. Linux and gVisor both take packets of 200 KB; half of that leaves room in the buffer."""
MAX_PACKET = 256 * 1024
MARK_BYTES = 20
TOKEN_BYTES = 16

_NUMBER = struct.Struct("!I")


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Return a connected pair that keeps packet boundaries."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
    return ours, theirs


def number_packet(number: int, frames: bytes) -> bytes:
    """Return a packet."""
    return _NUMBER.pack(number) + frames


def read_packet(packet: bytes) -> tuple[int, bytes]:
    """Return a packet's number and its frames. Raises `struct.error` when it is too short."""
    return _NUMBER.unpack_from(packet)[0], packet[_NUMBER.size :]


def mark(token: bytes, number: int) -> bytes:
    """Return the mark of a packet. Below PIPE_BUF, so it is never torn."""
    return token + _NUMBER.pack(number)


def read_mark(data: bytes, token: bytes, start: int = 0) -> tuple[int, int, int] | None:
    """Find the first mark: (where it begins, where it ends, its number). A mark cut off at the end has number -1."""
    at = data.find(token, start)
    if at >= 0:
        end = at + MARK_BYTES
        if end <= len(data):
            return at, end, _NUMBER.unpack_from(data, at + TOKEN_BYTES)[0]
        return at, len(data), -1
    for size in range(min(TOKEN_BYTES - 1, len(data) - start), 0, -1):
        if data.endswith(token[:size]):
            return len(data) - size, len(data), -1
    return None
