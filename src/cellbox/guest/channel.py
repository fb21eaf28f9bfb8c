"""The guest's end of the channel: frames on standard input and output, and a `Stream` for each operation.

Reading and writing are non-blocking and driven by the event loop. Output waits for two things: room in the pipe (a
bounded queue shared by all streams) and the stream's own credit, so a host that is slow on one stream holds back that
one alone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, cast

from cellbox.wire import flow, frames, messages
from cellbox.wire.frames import DataChannel, Kind
from cellbox.wire.pipes import PipeWriter

_READ_BYTES = 256 * 1024

Handler = Callable[["Stream", Any], Coroutine[Any, Any, messages.Outcome]]


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """Raised by a handler to answer with a `Failure`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.failure = messages.Failure(code=code, message=message)


class Stream:
    """One operation in progress, as its handler sees it."""

    def __init__(self, channel: Channel, stream_id: int) -> None:
        self.id = stream_id
        self.cancelled = asyncio.Event()
        """Set when the host wants the operation to end early. The handler still returns an outcome."""
        self._channel = channel
        self._credit = flow.SendCredit()
        self._credit_returned = asyncio.Event()
        self._window = flow.ReceiveWindow()
        self._input: deque[bytes] = deque()
        self._input_changed = asyncio.Event()
        self._input_ended = False
        self._on_cancel: Callable[[], None] | None = None
        self.is_orphaned = False
        """True when the guest was restored meanwhile: who asked is not at the other end, and output goes nowhere."""

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the host wants the operation to end early; at once if it did already."""
        if self.cancelled.is_set():
            callback()
        else:
            self._on_cancel = callback

    async def send(self, data: bytes, channel: DataChannel = DataChannel.MAIN) -> None:
        """Send bytes of any length, waiting for credit and room."""
        for start in range(0, len(data), frames.CHUNK_BYTES):
            chunk = data[start : start + frames.CHUNK_BYTES]
            if not await self._has_credit():
                return
            self._credit.spend(len(chunk))
            self.write(frames.encode(Kind.DATA, self.id, chunk, channel))
            await self._channel.wait_for_room()

    async def emit(self, event: messages.Event) -> None:
        """Send an event, waiting for credit and room."""
        await self.relay(_to_json(event))

    async def relay(self, document: bytes) -> None:
        """Send an event that is JSON already, as a kernel's displays are."""
        if not await self._has_credit():
            return
        self._credit.spend(len(document))
        for frame in frames.encode_json(Kind.MESSAGE, self.id, document):
            self.write(frame)
        await self._channel.wait_for_room()

    async def receive(self) -> bytes:
        """Return the next bytes of input; empty at its end. Raises `ConnectionAbortedError` when cancelled first."""
        while not self._input:
            if self.cancelled.is_set() or self.is_orphaned:
                raise ConnectionAbortedError("the host gave the operation up")
            if self._input_ended:
                return b""
            self._input_changed.clear()
            await self._input_changed.wait()
        data = self._input.popleft()
        credit = self._window.take(len(data))
        if credit is not None:
            self.write(frames.encode(Kind.CREDIT, self.id, credit))
        return data

    def write(self, frame: bytes) -> None:
        """Queue one frame of this stream, unless nobody is there for it."""
        if not self.is_orphaned:
            self._channel.write(frame)

    def orphan(self) -> None:
        """Let the operation go on for nobody: what it sends is dropped, and input that has not come will not."""
        self.is_orphaned = True
        self._input_changed.set()
        self._credit_returned.set()

    def accept(self, frame: frames.Frame) -> None:
        """Take a frame that the host sent on this stream."""
        if frame.kind == Kind.CREDIT:
            self._credit.refill(frame.payload)
            self._credit_returned.set()
        elif frame.kind == Kind.DATA:
            self._window.receive(len(frame.payload))
            self._input.append(frame.payload)
            self._input_changed.set()
        elif frame.kind == Kind.EOF:
            self._input_ended = True
            self._input_changed.set()
        elif frame.kind == Kind.CANCEL:
            self.cancelled.set()
            self._input_changed.set()
            self._credit_returned.set()
            callback, self._on_cancel = self._on_cancel, None
            if callback is not None:
                callback()

    async def _has_credit(self) -> bool:
        # A cancelled stream may have no reader left that returns credit. It sends what the credit covers and drops the
        # rest: waiting could be for ever, and ignoring the credit would break the protocol.
        while not self._credit.is_open:
            if self.cancelled.is_set() or self.is_orphaned:
                return False
            self._credit_returned.clear()
            await self._credit_returned.wait()
        return True


class Channel:
    """Frames in, frames out, one task per operation."""

    def __init__(self, reader: int, writer: int, handlers: dict[type[messages.Request], Handler]) -> None:
        self._reader, self._writer = reader, writer
        self._handlers = handlers
        self._frames = frames.FrameReader()
        self._assembler = frames.MessageAssembler()
        self._streams: dict[int, Stream] = {}
        self._serving: set[Stream] = set()  # not by id: after a restore the host counts from one again
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = asyncio.Event()
        """Set when the host is gone."""

    def start(self, hello: messages.Hello) -> None:
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._out = PipeWriter(self._writer, self._close)
        self._send_json(Kind.HELLO, 0, hello)
        asyncio.get_running_loop().add_reader(self._reader, self._on_readable)

    def log(self, line: messages.LogLine) -> None:
        """Send a line for the sandbox's log; dropped while the pipe is full, since logs must never hold up the rest."""
        if self._out.has_room:
            self._send_json(Kind.MESSAGE, 0, line)

    def write(self, frame: bytes) -> None:
        """Queue one frame and write what the pipe takes now."""
        self._out.write(frame)

    async def wait_for_room(self) -> None:
        await self._out.wait_for_room()

    def resume(self) -> None:
        """Send what has waited since `Quiesce` was answered."""
        self._out.release()

    def start_afresh(self, keep: Stream) -> None:
        """Another host is at the other end, and began with the operation `keep`: it knows of none before."""
        self._out.release(drop=True)
        for stream in self._serving - {keep}:
            stream.orphan()
        self._streams = {keep.id: keep}

    def _on_readable(self) -> None:
        try:
            data = os.read(self._reader, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close()
            return
        try:
            for frame in self._frames.feed(data):
                self._take(frame)
        except frames.ProtocolError:
            self._close()

    def _take(self, frame: frames.Frame) -> None:
        if frame.kind == Kind.OPEN:
            document = self._assembler.add(frame)
            if document is not None:
                self._open(frame.stream, document)
        elif (stream := self._streams.get(frame.stream)) is not None:  # else: its CLOSE is on the way
            stream.accept(frame)

    def _open(self, stream_id: int, document: bytes) -> None:
        stream = self._streams[stream_id] = Stream(self, stream_id)
        self._serving.add(stream)
        task = asyncio.get_running_loop().create_task(self._serve(stream, document))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, stream: Stream, document: bytes) -> None:
        request: messages.Request | None = None
        try:
            request = messages.request_from_fields(json.loads(document))
            handler = self._handlers.get(type(request))
            if handler is None:
                raise Refusal("invalid_request", f"this guest does not do {request.op!r}")
            outcome = await handler(stream, request)
        except Refusal as refusal:
            outcome = refusal.failure
        except ValueError as error:
            outcome = messages.Failure(code="invalid_request", message=str(error))
        except ConnectionAbortedError as error:
            outcome = messages.Failure(code="cancelled", message=str(error))
        except Exception as error:
            outcome = messages.Failure(code="internal", message=f"{type(error).__name__}: {error}")
        finally:
            self._serving.discard(stream)
            if self._streams.get(stream.id) is stream:
                del self._streams[stream.id]
        for frame in frames.encode_json(Kind.CLOSE, stream.id, _to_json(outcome)):
            stream.write(frame)
        if isinstance(request, messages.Quiesce):
            self._out.hold()

    def _send_json(self, kind: Kind, stream_id: int, message: Any) -> None:
        for frame in frames.encode_json(kind, stream_id, _to_json(message)):
            self.write(frame)

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._reader)
        self._out.close()
        self.closed.set()


_FIELDS: dict[type[Any], tuple[str, ...]] = {}


def _to_json(message: Any) -> bytes:
    return json.dumps(message, default=_fields, separators=(",", ":")).encode()


def _fields(message: Any) -> dict[str, Any]:
    # `messages.to_fields` copies recursively, at 25 µs an object: too slow for a listing of 100,000 entries.
    kind = cast("type[Any]", type(message))
    names = _FIELDS.get(kind)
    if names is None:
        names = _FIELDS[kind] = tuple(field.name for field in dataclasses.fields(kind))
    return {name: getattr(message, name) for name in names}
