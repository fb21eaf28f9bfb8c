"""Re-framing of saved state: the same bytes in fewer chunks."""

import struct
from pathlib import Path

from cellbox.engines.gvisor.image import FILES, reframe


def _framed(*chunks: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(chunk)) + chunk for chunk in chunks)


def _write(image: Path, state: bytes, index: bytes = b"") -> None:
    for name, data in zip(FILES, (state, index, b"pages"), strict=True):
        (image / name).write_bytes(data)


def test_tiny_chunks_are_joined(tmp_path: Path) -> None:
    header = b"gVisorSF" + struct.pack(">Q", 4) + b"meta" + bytes(32)
    chunks = [b"a", b"\x00", b"\x01", b"longer", b"b", b"\n"]
    _write(tmp_path, header + _framed(*chunks), _framed(b"x", b"y"))
    assert reframe(tmp_path)
    assert (tmp_path / FILES[0]).read_bytes() == header + _framed(b"".join(chunks))
    assert (tmp_path / FILES[1]).read_bytes() == _framed(b"xy")
    assert (tmp_path / FILES[2]).read_bytes() == b"pages"


def test_doing_it_twice_changes_nothing(tmp_path: Path) -> None:
    _write(tmp_path, _framed(b"a", b"b"))
    assert reframe(tmp_path)
    assert not reframe(tmp_path)


def test_what_is_not_framed_is_left_alone(tmp_path: Path) -> None:
    for data in (b"no frames at all", b"\x00\x00\x00\x09short", b"\x00\x00\x00\x00", b"ab"):
        _write(tmp_path, data)
        assert not reframe(tmp_path)
        assert (tmp_path / FILES[0]).read_bytes() == data
