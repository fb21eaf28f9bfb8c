"""Output is kept within bounds, decoded without splitting characters, and says exactly how much was cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cellbox.control.output import ClippedOutput, TextChunks

chunks = st.lists(st.binary(min_size=1, max_size=300), max_size=60)


@given(chunks)
def test_short_output_is_kept_whole(parts: list[bytes]) -> None:
    output = ClippedOutput(limit_bytes=2 * sum(map(len, parts)) + 2)
    for part in parts:
        output.add(part)
    assert output.dropped_bytes == 0
    assert output.text() == b"".join(parts).decode(errors="replace")


@given(chunks)
def test_long_output_keeps_its_ends_and_counts_the_rest(parts: list[bytes]) -> None:
    output, whole = ClippedOutput(limit_bytes=1000), b"".join(part.translate(bytes([65] * 256)) for part in parts)
    for part in parts:
        output.add(part.translate(bytes([65] * 256)))
    kept = output.text().count("A")
    assert kept + output.dropped_bytes == len(whole)
    assert kept <= 1000 + 300
    if output.dropped_bytes:
        assert f"{output.dropped_bytes} bytes cut" in output.text()


@given(st.text(), st.lists(st.integers(1, 5)))
def test_text_is_never_split_inside_a_character(text: str, cuts: list[int]) -> None:
    data, chunks, pieces, start = text.encode("utf-8", "surrogatepass"), TextChunks(), [], 0
    for cut in [*cuts, len(data)]:
        pieces.append(chunks.feed(data[start : start + cut]))
        start += cut
    pieces.append(chunks.end())
    assert "".join(pieces) == data.decode(errors="replace")
