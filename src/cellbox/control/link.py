"""The host's end of a guest's channel: many calls over one byte stream, each with its own flow control.

Everything that arrives is hostile: frames are bounded before they are kept, messages are decoded strictly, ids other
than those we opened are dropped, and a guest that breaks the protocol loses its link and with it its sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from cellbox import errors
from cellbox.engines.base import Channel
from cellbox.wire import flow, frames, messages
from cellbox.wire.frames import DataChannel, Frame, Kind, ProtocolError
from cellbox.wire.pipes import PipeWriter

_READ_BYTES = 256 * 1024
_MESSAGE_CHARACTERS = 2000  # of a guest's own words that are let into an error

OutcomeT = TypeVar("OutcomeT", bound=messages.Outcome)

_FAILURES: dict[str, type[errors.APIError]] = {
    "invalid_request": errors.InvalidRequestError,
    "unknown_language": errors.UnknownLanguageError,
    "context_not_found": errors.ContextNotFoundError,
    "context_limit": errors.QuotaExceededError,
    "shell_not_found": errors.ShellNotFoundError,
    "shell_limit": errors.QuotaExceededError,
    "path_not_found": errors.PathNotFoundError,
    "path_conflict": errors.PathConflictError,
    "permission_denied": errors.PermissionDeniedError,
    "storage_full": errors.StorageFullError,
    "cancelled": errors.ConflictError,
    "internal": errors.GuestError,
}


class Data(NamedTuple):
    """Bytes from one of a call's channels."""

    channel: DataChannel
    payload: bytes


class Call:
    """One operation in progress. Iterate with `receive()`, then read `outcome()`."""

    def __init__(self, link: GuestLink, stream_id: int, answer: type[messages.Outcome]) -> None:
        self._link = link
        self._stream_id = stream_id
        self._answer = answer
        self._items: deque[tuple[Data | messages.Event, int]] = deque()
        self._assembler = frames.MessageAssembler()
        self._window = flow.ReceiveWindow()
        self._credit = flow.SendCredit()
        self._waiter: asyncio.Future[None] | None = None
        self._credit_waiter: asyncio.Future[None] | None = None
        self._outcome: messages.Outcome | None = None
        self._fault: Exception | None = None
        self._is_abandoned = False
        self._deadline: asyncio.TimerHandle | None = None

    async def receive(self) -> Data | messages.Event | None:
        """Return what the guest sent next, in order; None once it has answered. Raises the fault of a broken link."""
        while not self._items:
            if self._fault is not None:
                raise self._fault
            if self._outcome is not None:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        item, size = self._items.popleft()
        self._return_credit(size)
        return item

    def outcome(self, expected: type[OutcomeT]) -> OutcomeT:
        """Return the answer after `receive()` returned None. Raises the error that a `Failure` stands for."""
        if isinstance(self._outcome, messages.Failure):
            error = _FAILURES.get(self._outcome.code, errors.GuestError)
            raise error(self._outcome.message[:_MESSAGE_CHARACTERS])
        assert isinstance(self._outcome, expected), "outcome() before the end, or of another operation"
        return self._outcome

    async def finish(self, expected: type[OutcomeT]) -> OutcomeT:
        """Wait for the answer, dropping what comes before it."""
        while await self.receive() is not None:
            pass
        return self.outcome(expected)

    async def send(self, data: bytes) -> None:
        """Send input, waiting for the guest to take it. Returns early once the guest has answered."""
        for start in range(0, len(data), frames.CHUNK_BYTES):
            chunk = data[start : start + frames.CHUNK_BYTES]
            while not self._credit.is_open:
                if self._fault is not None:
                    raise self._fault
                if self._outcome is not None:
                    return
                self._credit_waiter = asyncio.get_running_loop().create_future()
                await self._credit_waiter
            self._credit.spend(len(chunk))
            self._link.write(frames.encode(Kind.DATA, self._stream_id, chunk))
            await self._link.wait_for_room()

    def send_eof(self) -> None:
        self._link.write(frames.encode(Kind.EOF, self._stream_id))

    def cancel(self) -> None:
        """Ask the guest to end the operation early; its answer still comes."""
        if not self.is_over:
            self._link.write(frames.encode(Kind.CANCEL, self._stream_id))

    def abandon(self) -> None:
        """Nobody listens any more: cancel, and drop what still comes while keeping the guest's credit flowing."""
        self.cancel()
        self._is_abandoned = True
        while self._items:
            self._return_credit(self._items.popleft()[1])

    @property
    def is_over(self) -> bool:
        return self._outcome is not None or self._fault is not None

    def accept(self, frame: Frame) -> bool:
        """Take one frame from the guest; True when it was the last. Raises `ProtocolError`."""
        if frame.kind == Kind.CREDIT:
            if len(frame.payload) != flow.CREDIT.size:
                raise ProtocolError("malformed credit")
            self._credit.refill(frame.payload)
            _wake(self._credit_waiter)
            return False
        if frame.kind == Kind.CLOSE:
            document = self._assembler.add(frame)
            if document is None:
                return False
            self._outcome = _decode_outcome(document, self._answer)
            self.end()
            return True
        if frame.kind == Kind.DATA:
            self._push(Data(_data_channel(frame.flags), frame.payload), len(frame.payload))
        elif frame.kind == Kind.MESSAGE:
            document = self._assembler.add(frame)
            if document is not None:
                self._push(_decode_event(document), len(document))
        else:
            raise ProtocolError(f"the guest sent a frame of kind {frame.kind}")
        return False

    def fail(self, fault: Exception) -> None:
        """End the call without an answer: the link is gone, or its deadline has passed."""
        if not self.is_over:
            self._fault = fault
            self.end()

    def expire_after(self, seconds: float, what: str) -> None:
        """Fail the call if the guest has not answered by then. `what` names the operation in the error."""
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._expire, seconds, what)

    def _expire(self, seconds: float, what: str) -> None:
        if self._link.is_paused:
            self.expire_after(seconds, what)  # it could not answer; how much time was left is not worth keeping books
            return
        self.cancel()
        self.fail(
            errors.GuestError(f"the sandbox did not answer {what!r} within {seconds:g} s", details={"cause": "silent"})
        )
        self._link.forget(self._stream_id)

    def end(self) -> None:
        """Wake whoever waits, now that there is an outcome or a fault."""
        if self._deadline is not None:
            self._deadline.cancel()
        _wake(self._waiter)
        _wake(self._credit_waiter)

    def _push(self, item: Data | messages.Event, size: int) -> None:
        if not self._window.receive(size):
            raise ProtocolError("the guest sends without credit")
        if self._is_abandoned:
            self._return_credit(size)
            return
        self._items.append((item, size))
        _wake(self._waiter)

    def _return_credit(self, size: int) -> None:
        credit = self._window.take(size)
        if credit is not None and not self.is_over:
            self._link.write(frames.encode(Kind.CREDIT, self._stream_id, credit))


class GuestLink:
    """The channel to one guest. `on_fault` is told once when it breaks, `on_log` of every line the guest logs."""

    def __init__(
        self,
        channel: Channel,
        *,
        on_log: Callable[[messages.LogLine], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self._channel = channel
        self._on_log = on_log
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self._frames = frames.FrameReader()
        self._log_assembler = frames.MessageAssembler()
        self._calls: dict[int, Call] = {}
        self._next_id = 1
        self._out = PipeWriter(channel.writer, on_broken=lambda: None)  # the reader or the machine's end says more
        self._hello: asyncio.Future[messages.Hello] = self._loop.create_future()
        self._fault: Exception | None = None
        self.is_paused = False
        """While the guest can't run: calls in progress are not given up for its silence."""
        self._loop.add_reader(channel.reader, self._on_readable)
        self._loop.add_reader(channel.console, self._on_console)

    async def wait_hello(self) -> messages.Hello:
        """Wait for the word of a freshly booted guest. Raises the fault of a broken link."""
        return await asyncio.shield(self._hello)

    def open(self, request: messages.Request) -> Call:
        """Start an operation."""
        if self._fault is not None:
            raise self._fault
        stream_id = self._next_id
        self._next_id += 1
        call = self._calls[stream_id] = Call(self, stream_id, messages.ANSWERS[type(request)])
        document = json.dumps(messages.to_fields(request), separators=(",", ":")).encode()
        if len(document) > frames.MAX_MESSAGE_BYTES:
            raise errors.TooLargeError(
                f"the request has {len(document)} bytes, the limit is {frames.MAX_MESSAGE_BYTES}"
            )
        for frame in frames.encode_json(Kind.OPEN, stream_id, document):
            self.write(frame)
        return call

    async def ask(self, request: messages.Request, expected: type[OutcomeT], *, timeout_seconds: float) -> OutcomeT:
        """Do one operation that has no data of its own. Raises `GuestError` when no answer comes in time."""
        call = self.open(request)
        call.expire_after(timeout_seconds, request.op)
        try:
            return await call.finish(expected)
        finally:
            call.abandon()

    def forget(self, stream_id: int) -> None:
        """Drop whatever still comes for a call that has failed."""
        self._calls.pop(stream_id, None)

    def write(self, frame: bytes) -> None:
        """Queue one frame and write what the pipe takes now."""
        if self._fault is None:
            self._out.write(frame)

    async def wait_for_room(self) -> None:
        """Wait until the queue towards the guest is short enough for more."""
        await self._out.wait_for_room()

    @contextlib.asynccontextmanager
    async def quiet(self, *, timeout_seconds: float) -> AsyncGenerator[None]:
        """Hold the channel between two frames, in both directions: what is saved inside can be talked to again.

        Calls in progress go on afterwards. A link that was closed inside is left as it is. Raises `GuestError` when
        the guest does not fall silent in time.
        """
        try:
            call = self.open(messages.Quiesce())
            self._out.hold()
            call.expire_after(timeout_seconds, messages.Quiesce.op)
            await call.finish(messages.Done)
            yield
        finally:
            if self._fault is None:
                self._out.release()
                await self.ask(messages.Continue(), messages.Done, timeout_seconds=timeout_seconds)

    def close(self, fault: Exception) -> None:
        """Break the link: every call in progress ends with `fault`. The descriptors are closed here."""
        if self._fault is not None:
            return
        self._fault = fault
        self._loop.remove_reader(self._channel.reader)
        self._loop.remove_reader(self._channel.console)
        self._out.close()
        for descriptor in (self._channel.reader, self._channel.writer, self._channel.console):
            os.close(descriptor)
        for call in list(self._calls.values()):
            call.fail(fault)
        self._calls.clear()
        if not self._hello.done():
            self._hello.set_exception(fault)
            self._hello.exception()  # retrieved here, since nobody has to be waiting

    def _on_readable(self) -> None:
        try:
            data = os.read(self._channel.reader, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._channel.reader)  # the machine's end says more; do not spin until it comes
            return
        try:
            for frame in self._frames.feed(data):
                self._accept(frame)
        except ProtocolError as error:
            self._loop.remove_reader(self._channel.reader)
            self._on_fault(f"the guest broke the protocol: {error}")

    def _accept(self, frame: Frame) -> None:
        if frame.stream == 0:
            self._accept_unasked(frame)
            return
        call = self._calls.get(frame.stream)
        if call is not None and call.accept(frame):
            del self._calls[frame.stream]

    def _accept_unasked(self, frame: Frame) -> None:
        if frame.kind == Kind.HELLO:
            if not self._hello.done():
                self._hello.set_result(_convert(_parse(frame.payload), messages.Hello))
        elif frame.kind == Kind.MESSAGE:
            document = self._log_assembler.add(frame)
            if document is not None:
                self._on_log(_convert(_parse(document), messages.LogLine))
        else:
            raise ProtocolError(f"frame of kind {frame.kind} on stream 0")

    def _on_console(self) -> None:
        try:
            data = os.read(self._channel.console, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._channel.console)
            return
        self._on_log(messages.LogLine(stream="system", text=data.decode(errors="replace")))


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _data_channel(flags: int) -> DataChannel:
    try:
        return DataChannel(flags)
    except ValueError:
        raise ProtocolError(f"no data channel {flags}") from None


def _parse(document: bytes) -> Any:
    # The standard library's parser, since file names may hold lone surrogates, which msgspec refuses.
    try:
        return json.loads(document)
    except (ValueError, RecursionError):
        raise ProtocolError("a message that is no JSON") from None


_MessageT = TypeVar("_MessageT")


def _convert(fields: Any, message: type[_MessageT]) -> _MessageT:
    try:
        return msgspec.convert(fields, message, strict=True)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"a malformed {message.__name__}: {error}") from None


def _type_of(fields: Any) -> str:
    """Return a message's `type` field, or nothing for what is no message."""
    kind: object = fields.get("type") if isinstance(fields, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return kind if isinstance(kind, str) else ""


def _decode_outcome(document: bytes, answer: type[messages.Outcome]) -> messages.Outcome:
    fields = _parse(document)
    return _convert(fields, messages.Failure if _type_of(fields) == "failure" else answer)


def _decode_event(document: bytes) -> messages.Event:
    fields = _parse(document)
    event = messages.EVENTS.get(_type_of(fields))
    if event is None:
        raise ProtocolError("an unknown event")
    return _convert(fields, event)
