# ruff: noqa: E501 - tables and programs
"""A guest that lies: it must not end another's call, fill the daemon's memory, or be believed about what it may not know."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cellbox import errors
from cellbox.control.commands import Commands
from cellbox.control.contexts import Contexts
from cellbox.control.files import Files
from cellbox.control.guest import Guest
from cellbox.control.output import ClippedOutput
from cellbox.protocol.commands import RunCommand
from cellbox.protocol.contexts import RunCode
from cellbox.wire.frames import DataChannel, Kind

from ..unit.control.test_link import ScriptedGuest


@pytest.fixture
async def hostile() -> AsyncIterator[ScriptedGuest]:
    scripted = ScriptedGuest()
    yield scripted
    scripted.close()


@pytest.fixture
def guest(hostile: ScriptedGuest) -> Guest:
    async def wake() -> Any:
        raise AssertionError("nothing here is hibernated")

    return Guest((_NoMachine(), hostile.link), can_freeze=False, wake=wake)  # type: ignore[arg-type]


class _NoMachine:
    """Nothing here may ask the machine anything."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"machine.{name}")


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


async def flood(hostile: ScriptedGuest, stream: int, document: object) -> None:
    """Send the same message until the host has had enough of it."""
    try:
        async with asyncio.timeout(30):
            while True:
                await hostile.send_json(Kind.MESSAGE, stream, document)
    except (OSError, TimeoutError):
        pass


async def test_results_without_end_are_given_up(hostile: ScriptedGuest, guest: Guest) -> None:
    running = asyncio.ensure_future(Contexts(guest, "id").run("c", RunCode(code="1")))
    opened = await hostile.frame()
    document = {"type": "display", "bundle": {"text/plain": "x"}}
    sending = asyncio.ensure_future(flood(hostile, opened.stream, document))
    with pytest.raises(errors.GuestError, match="more results"):
        await asyncio.wait_for(running, 30)
    sending.cancel()


async def test_a_listing_without_end_is_given_up(hostile: ScriptedGuest, guest: Guest) -> None:
    listing = asyncio.ensure_future(Files(guest).list("/"))
    opened = await hostile.frame()
    entry = {
        "path": "/x",
        "name": "x",
        "kind": "file",
        "size": 1,
        "mode": 0,
        "mtime": 0.0,
        "uid": 0,
        "gid": 0,
        "target": "",
    }
    document = {"type": "entries", "entries": [entry] * 1000}
    sending = asyncio.ensure_future(flood(hostile, opened.stream, document))
    with pytest.raises(errors.TooLargeError):
        await asyncio.wait_for(listing, 30)
    sending.cancel()


@pytest.mark.parametrize("piece", [1, 2, 7, 4096])
def test_output_in_crumbs_takes_no_more_memory(piece: int) -> None:
    output, before = ClippedOutput(), peak_mb()
    crumb = bytes(piece)
    for _ in range(1_500_000 if piece < 100 else 10_000):
        output.add(bytearray(crumb))  # a new object each, as frames bring them
    assert peak_mb() - before < 48


async def test_one_call_can_not_be_ended_by_another(hostile: ScriptedGuest, guest: Guest) -> None:
    commands = Commands(guest)
    one = asyncio.ensure_future(commands.run(RunCommand(cmd="a")))
    first = await hostile.frame()
    two = asyncio.ensure_future(commands.run(RunCommand(cmd="b")))
    second = await hostile.frame()
    answer = {"type": "exited", "exit_code": 0, "duration_ms": 1}
    for stream in (0xFFFF, second.stream + 1, 10**9):
        await hostile.send_json(Kind.CLOSE, stream, answer)
    await hostile.send(Kind.DATA, second.stream, b"two", DataChannel.STDOUT)
    await hostile.send_json(Kind.CLOSE, second.stream, answer)
    await hostile.send(Kind.DATA, second.stream, b"late", DataChannel.STDOUT)
    await hostile.send_json(Kind.CLOSE, second.stream, {**answer, "exit_code": 9})
    assert (await asyncio.wait_for(two, 5)).stdout == "two"
    await asyncio.sleep(0.05)
    assert not one.done()
    await hostile.send_json(Kind.CLOSE, first.stream, answer)
    assert (await asyncio.wait_for(one, 5)).stdout == ""
    assert hostile.faults == []


@pytest.mark.parametrize(
    "answer",
    [
        {"type": "exited"}, {"type": "exited", "exit_code": "0", "duration_ms": 1}, {"type": "cell_done"}, [], 7, None,
        {"type": "exited", "exit_code": 0, "duration_ms": 1, "reason": "sandbox_deleted"},
        {"type": "file_written", "size": 1},
    ],
)  # fmt: skip
async def test_a_malformed_answer_costs_the_guest_its_link(
    hostile: ScriptedGuest, guest: Guest, answer: object
) -> None:
    running = asyncio.ensure_future(Commands(guest).run(RunCommand(cmd="a")))
    opened = await hostile.frame()
    await hostile.send_json(Kind.CLOSE, opened.stream, answer)
    for _ in range(100):
        if hostile.faults:
            break
        await asyncio.sleep(0.02)
    assert hostile.faults, "the machine is to be killed"
    guest.end(errors.SandboxNotRunningError("the guest broke the protocol"))
    with pytest.raises(errors.SandboxNotRunningError):
        await asyncio.wait_for(running, 5)


@pytest.mark.parametrize("sent", [9, 11])
async def test_a_file_is_as_long_as_it_was_announced(hostile: ScriptedGuest, guest: Guest, sent: int) -> None:
    async def read() -> bytes:
        async with Files(guest).read("/x") as content:
            return b"".join([chunk async for chunk in content])

    reading = asyncio.ensure_future(read())
    opened = await hostile.frame()
    await hostile.send_json(Kind.MESSAGE, opened.stream, {"type": "file_opened", "size": 10, "length": 10})
    await hostile.send(Kind.DATA, opened.stream, bytes(sent), DataChannel.STDOUT)
    await hostile.send_json(Kind.CLOSE, opened.stream, {"type": "file_read", "size": 10, "sent": 10})
    with pytest.raises(errors.GuestError):
        await asyncio.wait_for(reading, 5)


async def test_a_pickle_stays_bytes(hostile: ScriptedGuest, guest: Guest) -> None:
    pickle = b"cos\nsystem\n(S'touch /tmp/cellbox-pickled'\ntR."
    running = asyncio.ensure_future(Commands(guest).run(RunCommand(cmd="a")))
    opened = await hostile.frame()
    await hostile.send(Kind.DATA, opened.stream, pickle, DataChannel.STDOUT)
    await hostile.send_json(Kind.CLOSE, opened.stream, {"type": "exited", "exit_code": 0, "duration_ms": 1})
    assert (await asyncio.wait_for(running, 5)).stdout.encode() == pickle
