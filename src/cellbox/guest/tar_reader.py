"""Reads a tar archive as it arrives: plain or gzip, ustar, GNU and pax; in constant memory, and strictly."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from cellbox.guest.channel import Refusal, Stream

_BLOCK = 512
_CHUNK_BYTES = 64 * 1024
_MAX_HEADER_BYTES = 1024 * 1024
"""Of a long name or pax header. A path has 4 KiB at most."""
Kind = Literal["file", "directory", "link", "hard_link", "other"]
_KINDS: dict[bytes, Kind] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.CONTTYPE: "file",
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "hard_link",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One entry of an archive. The content of a file follows it in the source."""

    name: str
    kind: Kind
    size: int = 0
    mode: int = 0o644
    mtime: float = 0
    target: str = ""


class Source:
    """The bytes of a stream, inflated if they are gzip, in pieces of any wanted size."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._raw = b""
        self._buffer = bytearray()
        self._inflater: zlib._Decompress | None = None  # pyright: ignore[reportPrivateUsage]
        self._ended = False

    async def begin(self) -> bytes:
        """Return the first four bytes, still to be read, and begin to inflate if they say gzip."""
        while len(self._raw) < 4 and (data := await self._stream.receive()):
            self._raw += data
        if self._raw.startswith(b"\x1f\x8b"):
            self._inflater = zlib.decompressobj(wbits=31)
        return self._raw[:4]

    async def read(self, limit: int) -> bytes:
        """Return some bytes, `limit` at most; none at the end."""
        while not self._buffer and not self._ended:
            await self._fill()
        data = bytes(self._buffer[:limit])
        del self._buffer[:limit]
        return data

    async def exactly(self, size: int) -> bytes:
        """Return so many bytes. Raises `Refusal` when the archive ends before."""
        pieces: list[bytes] = []
        while size:
            piece = await self.read(size)
            if not piece:
                raise Refusal("invalid_request", "the archive is cut off")
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    async def _fill(self) -> None:
        if not self._raw:
            self._raw = await self._stream.receive()
        if self._inflater is None:
            self._buffer += self._raw
            self._ended = not self._raw
            self._raw = b""
            return
        try:
            # So much at a time, however many zeros a bomb has in store.
            self._buffer += self._inflater.decompress(self._raw, _CHUNK_BYTES)
        except zlib.error as error:
            raise Refusal("invalid_request", f"the archive is no good gzip: {error}") from None
        if self._inflater.eof:
            self._raw = self._inflater.unused_data
            self._inflater = zlib.decompressobj(wbits=31)
            if not self._raw:
                self._raw = await self._stream.receive()
                self._ended = not self._raw
            return
        ended = not self._raw
        self._raw = self._inflater.unconsumed_tail
        if ended and not self._buffer:
            raise Refusal("invalid_request", "the archive is cut off")


async def members(source: Source) -> AsyncIterator[Member]:
    """Yield the entries. Whoever iterates reads each file's content with `content` before the next one."""
    extended: dict[str, str] = {}
    common: dict[str, str] = {}
    while True:
        block = await source.read(_BLOCK)
        if not block:
            return  # some writers leave the closing blocks of zeros out
        block += await source.exactly(_BLOCK - len(block))
        if not block.strip(b"\0"):
            while await source.read(_CHUNK_BYTES):
                pass  # whoever sends it must be able to finish
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise Refusal("invalid_request", f"that is no tar archive: {error}") from None
        if header.size < 0:
            raise Refusal("invalid_request", "that is no tar archive: a negative size")
        if header.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE):
            records = _pax_records(await _long_header(source, header.size))
            if header.type == tarfile.XGLTYPE:
                common.update(records)
            else:
                extended.update(records)
            continue
        if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            text = (await _long_header(source, header.size)).rstrip(b"\0").decode("utf-8", "surrogateescape")
            extended["path" if header.type == tarfile.GNUTYPE_LONGNAME else "linkpath"] = text
            continue
        yield _member(header, {**common, **extended})
        extended = {}


async def content(source: Source, member: Member) -> AsyncIterator[bytes]:
    """Yield a member's content piece by piece, and read the padding behind it."""
    left = member.size
    while left:
        data = await source.read(min(left, _CHUNK_BYTES))
        if not data:
            raise Refusal("invalid_request", "the archive is cut off")
        left -= len(data)
        yield data
    await source.exactly(-member.size % _BLOCK)


async def _long_header(source: Source, size: int) -> bytes:
    if size > _MAX_HEADER_BYTES:
        raise Refusal("invalid_request", f"a header of {size} bytes is too long")
    data = await source.exactly(size)
    await source.exactly(-size % _BLOCK)
    return data


def _pax_records(data: bytes) -> dict[str, str]:
    records: dict[str, str] = {}
    position = 0
    while position < len(data) and data[position : position + 1] != b"\0":
        length, space, _ = data[position : position + 20].partition(b" ")
        if not space or not length.isdigit() or int(length) < 5:
            raise Refusal("invalid_request", "a malformed pax header")
        record = data[position + len(length) + 1 : position + int(length)]
        key, _, value = record.rstrip(b"\n").partition(b"=")
        records[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        position += int(length)
    return records


def _member(header: tarfile.TarInfo, pax: dict[str, str]) -> Member:
    try:
        size = int(pax.get("size", header.size))
        mtime = float(pax.get("mtime", header.mtime))
    except ValueError:
        raise Refusal("invalid_request", "a malformed pax header") from None
    if size < 0:
        raise Refusal("invalid_request", "a negative size")
    if any(key.startswith("GNU.sparse") for key in pax) or header.type == tarfile.GNUTYPE_SPARSE:
        raise Refusal("invalid_request", "sparse files in archives are not supported; pack without --sparse")
    kind: Kind = _KINDS.get(header.type, "other")
    name = pax.get("path", header.name)
    if kind == "file" and name.endswith("/"):
        kind = "directory"
    return Member(
        name=name,
        kind=kind,
        size=size if header.isreg() or header.type not in tarfile.SUPPORTED_TYPES else 0,  # the rest has no content
        mode=header.mode & 0o7777,
        mtime=mtime if 0 <= mtime < 2**40 else 0,
        target=pax.get("linkpath", header.linkname),
    )
