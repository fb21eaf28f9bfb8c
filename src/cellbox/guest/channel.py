"""The guest's end of the channel: frames on standard input and output, and a `Stream` for each operation.

Reading and writing are non-blocking and driven by the event loop. Output waits for two things: room in the pipe (a
bounded queue shared by all streams) and the stream's own credit, so a host that is slow on one stream holds back that
one alone.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from cellbox.wire import flow, frames, messages
from cellbox.wire.frames import DataChannel, Kind

_QUEUE_BYTES = 1024 * 1024  # past this, senders wait for the pipe
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

    async def send(self, data: bytes, channel: DataChannel = DataChannel.MAIN) -> None:
        """Send bytes of any length, waiting for credit and room."""
        for start in range(0, len(data), frames.CHUNK_BYTES):
            chunk = data[start : start + frames.CHUNK_BYTES]
            await self._wait_for_credit()
            self._credit.spend(len(chunk))
            self._channel.write(frames.encode(Kind.DATA, self.id, chunk, channel))
            await self._channel.wait_for_room()

    async def emit(self, event: messages.Event) -> None:
        """Send an event, waiting for credit and room."""
        document = _to_json(event)
        await self._wait_for_credit()
        self._credit.spend(len(document))
        for frame in frames.encode_json(Kind.MESSAGE, self.id, document):
            self._channel.write(frame)
        await self._channel.wait_for_room()

    async def receive(self) -> bytes:
        """Return the next bytes of input; empty at its end. Raises `ConnectionAbortedError` when cancelled first."""
        while not self._input:
            if self.cancelled.is_set():
                raise ConnectionAbortedError("the host gave the operation up")
            if self._input_ended:
                return b""
            self._input_changed.clear()
            await self._input_changed.wait()
        data = self._input.popleft()
        credit = self._window.take(len(data))
        if credit is not None:
            self._channel.write(frames.encode(Kind.CREDIT, self.id, credit))
        return data

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

    async def _wait_for_credit(self) -> None:
        # A cancelled stream has no reader left: what it still sends is dropped by the host, and must not wait for it.
        while not self._credit.is_open and not self.cancelled.is_set():
            self._credit_returned.clear()
            await self._credit_returned.wait()


class Channel:
    """Frames in, frames out, one task per operation."""

    def __init__(self, reader: int, writer: int, handlers: dict[type[messages.Request], Handler]) -> None:
        self._reader, self._writer = reader, writer
        self._handlers = handlers
        self._frames = frames.FrameReader()
        self._assembler = frames.MessageAssembler()
        self._streams: dict[int, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._writing = False
        self.closed = asyncio.Event()
        """Set when the host is gone."""

    def start(self, hello: messages.Hello) -> None:
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._send_json(Kind.HELLO, 0, hello)
        asyncio.get_running_loop().add_reader(self._reader, self._on_readable)

    def log(self, line: messages.LogLine) -> None:
        """Send a line for the sandbox's log; dropped while the pipe is full, since logs must never hold up the rest."""
        if self._out_bytes < _QUEUE_BYTES:
            self._send_json(Kind.MESSAGE, 0, line)

    def write(self, frame: bytes) -> None:
        """Queue one frame and write what the pipe takes now."""
        self._out.append(frame)
        self._out_bytes += len(frame)
        if not self._writing:
            self._flush()

    async def wait_for_room(self) -> None:
        if self._out_bytes >= _QUEUE_BYTES:
            self._room.clear()
            await self._room.wait()

    def _flush(self) -> None:
        while self._out:
            try:
                written = os.writev(self._writer, list(self._out)[:16])
            except BlockingIOError:
                break
            except OSError:
                self._close()
                return
            self._out_bytes -= written
            while written:
                head = self._out[0]
                if written < len(head):
                    self._out[0] = head[written:]
                    break
                written -= len(head)
                self._out.popleft()
        if self._out_bytes < _QUEUE_BYTES:
            self._room.set()
        if bool(self._out) != self._writing:
            self._writing = bool(self._out)
            loop = asyncio.get_running_loop()
            if self._writing:
                loop.add_writer(self._writer, self._flush)
            else:
                loop.remove_writer(self._writer)

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
        for frame in self._frames.feed(data):
            if frame.kind == Kind.OPEN:
                document = self._assembler.add(frame)
                if document is not None:
                    self._open(frame.stream, document)
            elif (stream := self._streams.get(frame.stream)) is not None:
                stream.accept(frame)

    def _open(self, stream_id: int, document: bytes) -> None:
        stream = self._streams[stream_id] = Stream(self, stream_id)
        task = asyncio.get_running_loop().create_task(self._serve(stream, document))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, stream: Stream, document: bytes) -> None:
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
        except Exception as error:  # noqa: BLE001 - whatever a handler missed must still end the stream
            outcome = messages.Failure(code="internal", message=f"{type(error).__name__}: {error}")
        finally:
            self._streams.pop(stream.id, None)
        self._send_json(Kind.CLOSE, stream.id, outcome)

    def _send_json(self, kind: Kind, stream_id: int, message: Any) -> None:
        for frame in frames.encode_json(kind, stream_id, _to_json(message)):
            self.write(frame)

    def _close(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._reader)
        loop.remove_writer(self._writer)
        self.closed.set()


def _to_json(message: Any) -> bytes:
    return json.dumps(messages.to_fields(message), separators=(",", ":")).encode()
