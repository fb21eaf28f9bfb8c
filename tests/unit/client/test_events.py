from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellbox.client._events import EventReader, needs_terminal
from cellbox.errors import APIError, GuestError
from cellbox.protocol import operations
from cellbox.protocol.commands import CommandExited, StderrChunk, StdoutChunk


def read(raw: bytes, size: int) -> list[Any]:
    reader = EventReader(operations.stream_command)
    return [event for start in range(0, len(raw), size) for event in reader.feed(raw[start : start + size])]


@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]))), size=st.integers(1, 40), crlf=st.booleans())
def test_any_text_survives_any_cut(texts: list[str], size: int, crlf: bool) -> None:
    raw = b": hello\n\n"
    for text in texts:
        raw += b"event: stdout\ndata: " + json.dumps({"chunk": text}).encode() + b"\n\n"
    raw += b'event:exit\ndata:{"exit_code": 1}\n\n'
    if crlf:
        raw = raw.replace(b"\n", b"\r\n")
    assert read(raw, size) == [*[StdoutChunk(chunk=text) for text in texts], CommandExited(exit_code=1)]


def test_time_is_linear_in_the_bytes() -> None:
    raw = b'event: stderr\ndata: {"chunk":"' + b"x" * 8_000_000 + b'"}\n\n'
    start = time.process_time()
    (event,) = read(raw, 512)
    assert isinstance(event, StderrChunk)
    assert len(event.chunk) == 8_000_000
    assert time.process_time() - start < 2


def test_failures_are_typed() -> None:
    with pytest.raises(GuestError, match="died"):
        read(b'event: error\ndata: {"error":"the guest died","code":"guest_error"}\n\n', 9)
    with pytest.raises(APIError, match="exec"):
        read(b'event: error\ndata: {"error":"exec failed"}\n\n', 9)
    with pytest.raises(APIError, match="not what"):
        read(b"event: stdout\ndata: {}\n\n", 9)


def test_which_streams_have_a_last_event() -> None:
    streams = [one for one in operations.OPERATIONS.values() if one.events and not one.is_websocket]
    assert [one.name for one in streams if not needs_terminal(one)] == ["get_logs"]
