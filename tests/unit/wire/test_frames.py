"""Frames survive any cutting of the byte stream, and hostile ones are refused before they cost memory."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellbox.wire import frames
from cellbox.wire.frames import Frame, FrameReader, Kind, MessageAssembler, ProtocolError

frame = st.builds(
    Frame,
    kind=st.integers(0, 255),
    flags=st.integers(0, 255),
    stream=st.integers(0, 2**32 - 1),
    payload=st.binary(max_size=200),
)


@given(st.lists(frame, max_size=20), st.lists(st.integers(1, 40), max_size=50))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(sent: list[Frame], cuts: list[int]) -> None:
    data = b"".join(frames.encode(f.kind, f.stream, f.payload, f.flags) for f in sent)
    reader, received, start = FrameReader(), [], 0
    for cut in [*cuts, len(data)]:
        received += reader.feed(data[start : start + cut])
        start += cut
    assert received == sent
    assert reader.is_empty


@given(st.binary(max_size=2000))
def test_garbage_gives_frames_or_a_protocol_error_and_nothing_else(garbage: bytes) -> None:
    reader = FrameReader()
    try:
        for received in reader.feed(garbage):
            assert len(received.payload) <= frames.MAX_FRAME_BYTES
    except ProtocolError:
        pass


@pytest.mark.parametrize("length", [frames.MAX_FRAME_BYTES + 1, 2**31, 2**32 - 1])
def test_an_oversized_frame_is_refused_by_its_header_alone(length: int) -> None:
    with pytest.raises(ProtocolError, match="limit"):
        FrameReader().feed(frames.HEADER.pack(length, Kind.DATA, 0, 1))


@given(st.integers(0, 3 * frames.MAX_FRAME_BYTES))
def test_a_message_of_any_length_is_joined_again(length: int) -> None:
    document = json.dumps("x" * length).encode()
    assembler, joined = MessageAssembler(), None
    for encoded in frames.encode_json(Kind.MESSAGE, 7, document):
        assert joined is None, "the document was complete before its last frame"
        (one,) = FrameReader().feed(encoded)
        joined = assembler.add(one)
    assert joined == document


def test_a_message_that_never_ends_is_refused_at_its_limit() -> None:
    assembler = MessageAssembler()
    part = Frame(Kind.MESSAGE, frames.MORE, 1, bytes(frames.MAX_FRAME_BYTES))
    with pytest.raises(ProtocolError, match="message of more than"):
        for _ in range(frames.MAX_MESSAGE_BYTES // frames.MAX_FRAME_BYTES + 1):
            assembler.add(part)


def test_a_message_cannot_be_continued_by_another_kind() -> None:
    assembler = MessageAssembler()
    assembler.add(Frame(Kind.MESSAGE, frames.MORE, 1, b"{"))
    with pytest.raises(ProtocolError, match="inside a message"):
        assembler.add(Frame(Kind.CLOSE, 0, 1, b"}"))
