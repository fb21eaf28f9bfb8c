"""The host's end of the channel against a scripted guest: flow control, faults, and hostile input."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator

import pytest

from cellbox import errors
from cellbox.control.link import Data, GuestLink
from cellbox.engines.base import Channel
from cellbox.wire import flow, frames, messages
from cellbox.wire.frames import DataChannel, Frame, FrameReader, Kind


class ScriptedGuest:
    """The other end of a link, driven by the test frame by frame."""

    def __init__(self) -> None:
        host_reader, self._writer = os.pipe()
        self._reader, host_writer = os.pipe()
        host_console, self._console = os.pipe()
        for descriptor in (host_reader, host_writer, host_console):
            os.set_blocking(descriptor, False)
        self.faults: list[str] = []
        self.logs: list[messages.LogLine] = []
        self.link = GuestLink(
            Channel(reader=host_reader, writer=host_writer, console=host_console),
            on_log=self.logs.append,
            on_fault=self.faults.append,
        )
        self._frames = FrameReader()
        self._pending: list[Frame] = []

    async def frame(self) -> Frame:
        while not self._pending:
            data = await asyncio.to_thread(os.read, self._reader, 65536)
            self._pending += self._frames.feed(data)
        return self._pending.pop(0)

    async def send(self, kind: int, stream: int, payload: bytes = b"", flags: int = 0) -> None:
        # In a thread, since a full pipe blocks until the link has read it.
        await asyncio.to_thread(os.write, self._writer, frames.encode(kind, stream, payload, flags))

    async def send_json(self, kind: int, stream: int, document: object) -> None:
        await self.send(kind, stream, json.dumps(document).encode())

    def close(self) -> None:
        self.link.close(errors.SandboxNotFoundError("over"))
        for descriptor in (self._writer, self._reader, self._console):
            os.close(descriptor)


@pytest.fixture
async def guest() -> AsyncIterator[ScriptedGuest]:
    scripted = ScriptedGuest()
    yield scripted
    scripted.close()


async def test_output_arrives_in_order_and_the_outcome_last(guest: ScriptedGuest) -> None:
    call = guest.link.open(messages.Exec(command="x"))
    opened = await guest.frame()
    assert (opened.kind, json.loads(opened.payload)["op"]) == (Kind.OPEN, "exec")
    await guest.send(Kind.DATA, opened.stream, b"one", DataChannel.STDOUT)
    await guest.send(Kind.DATA, opened.stream, b"two", DataChannel.STDERR)
    await guest.send_json(Kind.CLOSE, opened.stream, {"type": "exited", "exit_code": 3, "duration_ms": 1})
    assert await call.receive() == Data(DataChannel.STDOUT, b"one")
    assert await call.receive() == Data(DataChannel.STDERR, b"two")
    assert await call.receive() is None
    assert call.outcome(messages.Exited).exit_code == 3


async def test_a_failure_becomes_the_error_it_stands_for(guest: ScriptedGuest) -> None:
    asking = asyncio.ensure_future(guest.link.ask(messages.Stat(path="/x"), messages.FileInfo, timeout_seconds=5))
    opened = await guest.frame()
    await guest.send_json(Kind.CLOSE, opened.stream, {"type": "failure", "code": "path_not_found", "message": "no /x"})
    with pytest.raises(FileNotFoundError, match="no /x"):
        await asking


async def test_credit_comes_back_only_for_what_was_taken(guest: ScriptedGuest) -> None:
    call = guest.link.open(messages.Exec(command="x"))
    opened = await guest.frame()
    chunk = bytes(frames.CHUNK_BYTES)
    for _ in range(flow.RETURN_BYTES // len(chunk)):
        await guest.send(Kind.DATA, opened.stream, chunk, DataChannel.STDOUT)
        await call.receive()
    credit = await guest.frame()
    assert (credit.kind, flow.CREDIT.unpack(credit.payload)) == (Kind.CREDIT, (flow.RETURN_BYTES,))


async def test_input_waits_for_the_guest_to_take_it(guest: ScriptedGuest) -> None:
    call = guest.link.open(messages.WriteFile(path="/x"))
    opened = await guest.frame()
    sending = asyncio.ensure_future(call.send(bytes(2 * flow.WINDOW_BYTES)))
    received = 0
    while received < flow.WINDOW_BYTES:
        received += len((await guest.frame()).payload)
    await asyncio.sleep(0.05)
    assert not sending.done()
    await guest.send(Kind.CREDIT, opened.stream, flow.CREDIT.pack(flow.WINDOW_BYTES))
    while received < 2 * flow.WINDOW_BYTES:
        received += len((await guest.frame()).payload)
    await sending


async def test_a_call_that_is_given_up_is_cancelled_and_drained(guest: ScriptedGuest) -> None:
    call = guest.link.open(messages.Exec(command="x"))
    opened = await guest.frame()
    call.abandon()
    assert (await guest.frame()).kind == Kind.CANCEL
    for _ in range(4):
        await guest.send(Kind.DATA, opened.stream, bytes(frames.CHUNK_BYTES), DataChannel.STDOUT)
    assert (await guest.frame()).kind == Kind.CREDIT


async def test_a_silent_guest_is_an_error_and_not_a_hang(guest: ScriptedGuest) -> None:
    with pytest.raises(errors.GuestError, match="did not answer 'ping'"):
        await guest.link.ask(messages.Ping(), messages.Done, timeout_seconds=0.05)


async def test_answers_to_unknown_streams_are_dropped(guest: ScriptedGuest) -> None:
    asking = asyncio.ensure_future(guest.link.ask(messages.Ping(), messages.Done, timeout_seconds=5))
    opened = await guest.frame()
    await guest.send_json(Kind.CLOSE, 4_000_000_000, {"type": "failure", "code": "internal", "message": "forged"})
    await guest.send_json(Kind.CLOSE, opened.stream, {"type": "done"})
    await guest.send_json(Kind.CLOSE, opened.stream, {"type": "failure", "code": "internal", "message": "again"})
    assert await asking == messages.Done()
    assert not guest.faults


@pytest.mark.parametrize(
    ("kind", "payload", "flags"),
    [
        (Kind.CLOSE, b"not json", 0),
        (Kind.CLOSE, b'{"type":"exited","exit_code":"0","duration_ms":1}', 0),
        (Kind.CLOSE, b'{"type":"done","extra":' + b"[" * 100_000, 0),
        (Kind.CLOSE, b"[]", 0),
        (Kind.MESSAGE, b'{"type":"no such event"}', 0),
        (Kind.MESSAGE, b'{"type":["display"]}', 0),
        (Kind.DATA, b"x", 9),
        (Kind.CREDIT, b"123", 0),
        (Kind.OPEN, b"{}", 0),
        (99, b"", 0),
    ],
)
async def test_a_guest_that_breaks_the_protocol_is_reported(
    guest: ScriptedGuest, kind: int, payload: bytes, flags: int
) -> None:
    guest.link.open(messages.Exec(command="x"))
    opened = await guest.frame()
    await guest.send(kind, opened.stream, payload, flags)
    async with asyncio.timeout(5):
        while not guest.faults:
            await asyncio.sleep(0.01)
    assert "broke the protocol" in guest.faults[0]


async def test_a_flood_without_credit_is_reported_and_bounded(guest: ScriptedGuest) -> None:
    guest.link.open(messages.Exec(command="x"))
    opened = await guest.frame()
    for _ in range(flow.WINDOW_BYTES // frames.CHUNK_BYTES + 1):
        await guest.send(Kind.DATA, opened.stream, bytes(frames.CHUNK_BYTES), DataChannel.STDOUT)
    async with asyncio.timeout(5):
        while not guest.faults:
            await asyncio.sleep(0.01)
    assert "without credit" in guest.faults[0]


async def test_closing_the_link_ends_every_call_with_the_reason(guest: ScriptedGuest) -> None:
    call = guest.link.open(messages.Exec(command="x"))
    receiving = asyncio.ensure_future(call.receive())
    await asyncio.sleep(0)
    guest.link.close(errors.SandboxNotFoundError("killed meanwhile"))
    with pytest.raises(errors.SandboxNotFoundError, match="killed meanwhile"):
        await receiving
    with pytest.raises(errors.SandboxNotFoundError, match="killed meanwhile"):
        guest.link.open(messages.Ping())
