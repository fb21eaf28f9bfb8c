"""The files of a checkpoint: opening them, and re-framing the state that older releases write wastefully."""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Generator
from pathlib import Path

FILES = ("checkpoint.img", "pages_meta.img", "pages.img")
"""State, page index, pages: the names `runsc restore --image-path` looks for."""

_MAGIC = b"gVisorSF"
_HMAC_BYTES = 32
_OUTPUT_CHUNK = 1 << 30
_SMALL_CHUNKS = re.compile(rb"(?:\x00\x00\x00\x01.)+", re.DOTALL)


class ImageFault(Exception):  # noqa: N818 - internal: the engine maps it to its own errors
    """The image is incomplete or can't be written."""


@contextlib.contextmanager
def opened(image: Path, *, writing: bool) -> Generator[list[int]]:
    """Descriptors of the files of an image, in the order the control socket wants them; closed afterwards."""
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR if writing else os.O_RDONLY
    descriptors: list[int] = []
    try:
        for name in FILES:
            try:
                descriptors.append(os.open(image / name, flags | os.O_CLOEXEC, 0o600))  # memory of a guest: secret
            except OSError as error:
                raise ImageFault(f"{image / name}: {error.strerror}") from error
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def discard(image: Path) -> None:
    """Remove what a failed checkpoint left."""
    for name in FILES:
        (image / name).unlink(missing_ok=True)


def reframe(image: Path) -> bool:
    """Join the tiny chunks of an old state file; returns whether it was one.

    Releases up to 2024 frame every write, mostly of one byte, with a length of four; a restore reads them back one by
    one. A few large chunks are the same data: 1.5 MB become 0.35 MB and a restore takes 11-17 ms less (measured with
    pandas loaded). Newer releases write large chunks themselves and are left alone.
    """
    changed = False
    for name in FILES[:2]:
        path = image / name
        old = path.read_bytes()
        new = _joined(old)
        if new is not None and len(new) < len(old):
            temporary = path.with_suffix(".part")
            temporary.write_bytes(new)
            temporary.chmod(0o600)
            temporary.replace(path)
            changed = True
    return changed


def _joined(data: bytes) -> bytes | None:
    """The same file with large chunks; `None` if it is not made of chunks."""
    start = 0
    if data.startswith(_MAGIC):
        (metadata,) = struct.unpack_from(">Q", data, len(_MAGIC))
        start = len(_MAGIC) + 8 + metadata + _HMAC_BYTES
    body = _unframed(data, start)
    if body is None:
        return None
    parts = [data[:start]]
    for position in range(0, len(body), _OUTPUT_CHUNK):
        chunk = body[position : position + _OUTPUT_CHUNK]
        parts += (struct.pack(">I", len(chunk)), chunk)
    return b"".join(parts)


def _unframed(data: bytes, position: int) -> bytes | None:
    body = bytearray()
    while position < len(data):
        # Runs of one-byte chunks are nearly all of the file: taken as one slice, at the speed of memory.
        if run := _SMALL_CHUNKS.match(data, position):
            body += data[position + 4 : run.end() : 5]
            position = run.end()
            continue
        if position + 4 > len(data):
            return None
        (length,) = struct.unpack_from(">I", data, position)
        position += 4
        if length == 0 or position + length > len(data):
            return None
        body += data[position : position + length]
        position += length
    return bytes(body)
