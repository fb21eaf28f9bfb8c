"""Writing to a pipe: what is held back is sent later and in order, or not at all."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from cellbox.wire.pipes import QUEUE_BYTES, PipeWriter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


async def test_what_is_held_back_comes_after_what_was_queued(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = PipeWriter(descriptor, lambda: None)
    big = b"x" * QUEUE_BYTES  # more than a pipe takes at once
    writer.write(big)
    writer.hold()
    writer.write(b"later")
    waiting = asyncio.ensure_future(writer.wait_for_room())
    received = b""
    while len(received) < len(big):
        try:
            received += os.read(reader, 1 << 20)
        except BlockingIOError:
            await asyncio.sleep(0)
    assert received == big
    assert not waiting.done()
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    writer.release()
    await waiting
    assert os.read(reader, 100) == b"later"
    writer.close()


async def test_what_is_held_back_can_be_dropped(pipe: tuple[int, int]) -> None:
    reader, descriptor = pipe
    writer = PipeWriter(descriptor, lambda: None)
    writer.hold()
    writer.write(b"x" * 2 * QUEUE_BYTES)
    writer.release(drop=True)
    assert writer.has_room
    writer.write(b"new")
    assert os.read(reader, 100) == b"new"
    writer.close()
