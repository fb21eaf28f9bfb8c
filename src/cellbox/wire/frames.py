"""Frames: how one byte stream carries many operations at once.

A frame is a ten-byte header and a payload: payload length (u32), kind (u8), flags (u8), stream id (u32), big-endian.
The host opens a stream per operation and never reuses an id; the guest only ever answers. A stream's life:

    host  OPEN {…}            the operation and its parameters
    host  DATA… EOF           input, for operations that take some
    guest DATA… MESSAGE…      output and events, in the order in which they happened
    guest CLOSE {…}           the outcome; nothing follows on this stream
    host  CANCEL              any time: end it early; the guest still answers with CLOSE

DATA and MESSAGE payloads are flow-controlled by CREDIT in both directions (`flow.py`), so one slow reader holds back
its own stream and nothing else. JSON larger than a frame continues in further frames, all but the last with `MORE`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

VERSION = 1
"""Of this protocol. Host and guest of one sandbox must have the same; HELLO carries the guest's."""

HEADER = struct.Struct("!IBBI")
MAX_FRAME_BYTES = 256 * 1024
"""Largest payload. Bounds what a hostile guest can make the host allocate before it has sent the bytes."""
MAX_MESSAGE_BYTES = 32 * 1024 * 1024
"""Largest JSON message over all its frames. Kernels cap their results well below this."""
CHUNK_BYTES = 64 * 1024
"""How large a DATA payload our own side sends: small enough that streams interleave, large enough to be cheap."""


class ProtocolError(Exception):
    """The other side broke the protocol. The connection is of no use any more."""


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 0
    OPEN = 1
    MESSAGE = 2
    DATA = 3
    EOF = 4
    CLOSE = 5
    CANCEL = 6
    CREDIT = 7


MORE = 0x80
"""Flag on OPEN, MESSAGE and CLOSE: the JSON goes on in the next frame of this kind and stream."""


class DataChannel(IntEnum):
    """Flags of a DATA frame: which of the stream's byte channels it belongs to."""

    MAIN = 0  # file contents, standard input
    STDOUT = 1
    STDERR = 2


class Frame(NamedTuple):
    """One frame, decoded."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def encode(kind: int, stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """Return one frame; the caller keeps `payload` within `MAX_FRAME_BYTES`."""
    return HEADER.pack(len(payload), kind, flags, stream) + payload


def encode_json(kind: int, stream: int, document: bytes) -> Iterator[bytes]:
    """Yield the frames that carry one JSON document of any allowed size."""
    for start in range(0, max(len(document), 1), MAX_FRAME_BYTES):
        end = start + MAX_FRAME_BYTES
        yield encode(kind, stream, document[start:end], MORE if end < len(document) else 0)


class FrameReader:
    """Cuts a byte stream into frames. Feed it what arrives; it keeps at most one incomplete frame."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames completed by `data`. Raises `ProtocolError` before anything oversized is kept."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        offset, available = 0, len(buffer)
        while available - offset >= HEADER.size:
            length, kind, flags, stream = HEADER.unpack_from(buffer, offset)
            if length > MAX_FRAME_BYTES:
                raise ProtocolError(f"frame of {length} bytes, the limit is {MAX_FRAME_BYTES}")
            end = offset + HEADER.size + length
            if end > available:
                break
            frames.append(Frame(kind, flags, stream, bytes(buffer[offset + HEADER.size : end])))
            offset = end
        if offset:
            del buffer[:offset]
        return frames

    @property
    def is_empty(self) -> bool:
        """True when no part of a frame is waiting for its rest."""
        return not self._buffer


class MessageAssembler:
    """Joins the frames of a JSON message that did not fit into one."""

    __slots__ = ("_kind", "_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._kind = -1

    def add(self, frame: Frame) -> bytes | None:
        """Return the whole document when `frame` is its last part. Raises `ProtocolError` when it grows too large."""
        if self._parts and frame.kind != self._kind:
            raise ProtocolError(f"frame of kind {frame.kind} inside a message of kind {self._kind}")
        if not self._parts and not frame.flags & MORE:
            return frame.payload
        self._kind = frame.kind
        self._parts.append(frame.payload)
        self._size += len(frame.payload)
        if self._size > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"message of more than {MAX_MESSAGE_BYTES} bytes")
        if frame.flags & MORE:
            return None
        document = b"".join(self._parts)
        self._parts, self._size = [], 0
        return document
