"""Packing files into an archive that goes to the host as it is made: nothing of it is kept here."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import IO, Protocol, cast

from cellbox.guest.channel import Refusal, Stream
from cellbox.guest.failures import check_path, refusing
from cellbox.wire.messages import Pack, Packed

_CHUNK_BYTES = 64 * 1024
_SEND_BYTES = 64 * 1024
_MAX_PROBLEMS = 100
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK = 512


async def pack(stream: Stream, request: Pack) -> Packed:
    """Send the archive. A file that shrinks while it is packed is filled with zeros, as tar has it, and told."""
    path = check_path(request.path).rstrip("/") or "/"
    packers: dict[str, type[_Tar] | type[_Zip]] = {"tar": _Tar, "tar.gz": _Tar, "zip": _Zip}
    if request.format not in packers:
        raise Refusal("invalid_request", f"format must be one of {', '.join(packers)}, not {request.format[:40]!r}")
    outlet = _Outlet(stream, compressed=request.format == "tar.gz")
    packer: _Packer = packers[request.format](outlet)
    with refusing(path):
        tree = _Tree(path)
    entries = 0
    try:
        async for name, status, directory, plain in tree.walk():
            if stat.S_ISSOCK(status.st_mode) or stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode):
                tree.note(name, "sockets and devices are left out")
                continue
            try:
                problem = await packer.add(name, status, directory, plain)
            except FileNotFoundError:
                problem = "it vanished"
            if problem:
                tree.note(name, problem)
            entries += 1
            if stream.cancelled.is_set():
                raise ConnectionAbortedError("the host gave the operation up")
        await packer.finish()
        await outlet.finish()
    finally:
        tree.close()
    return Packed(entries=entries, problems=tree.problems)


class _Outlet:
    """Collects what a packer writes and sends it in pieces. Looks like a file that only grows."""

    def __init__(self, stream: Stream, *, compressed: bool) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._position = 0
        self._deflater = zlib.compressobj(6, wbits=31) if compressed else None

    def write(self, data: bytes) -> int:
        self._buffer += data if self._deflater is None else self._deflater.compress(data)
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        pass

    async def drain(self) -> None:
        if len(self._buffer) >= _SEND_BYTES:
            data, self._buffer = bytes(self._buffer), bytearray()
            await self._stream.send(data)
        await asyncio.sleep(0)

    async def finish(self) -> None:
        if self._deflater is not None:
            self._buffer += self._deflater.flush()
        await self._stream.send(bytes(self._buffer))


class _Packer(Protocol):
    async def add(self, name: str, status: os.stat_result, directory: int, plain: str) -> str: ...

    async def finish(self) -> None: ...


class _Tar:
    def __init__(self, outlet: _Outlet) -> None:
        self._outlet = outlet

    async def add(self, name: str, status: os.stat_result, directory: int, plain: str) -> str:
        header = tarfile.TarInfo(name)
        header.mode, header.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        header.uid, header.gid = status.st_uid, status.st_gid
        if stat.S_ISREG(status.st_mode):
            return await self._add_file(header, directory, plain)
        if stat.S_ISDIR(status.st_mode):
            header.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(status.st_mode):
            header.type, header.linkname = tarfile.SYMTYPE, os.readlink(plain, dir_fd=directory)
        else:
            header.type = tarfile.FIFOTYPE
        self._write_header(header)
        await self._outlet.drain()
        return ""

    async def _add_file(self, header: tarfile.TarInfo, directory: int, plain: str) -> str:
        with _opened(directory, plain) as file:
            header.size = left = os.fstat(file.fileno()).st_size
            self._write_header(header)
            for data in _content(file, left):
                left -= len(data)
                self._outlet.write(data)
                await self._outlet.drain()
        problem = f"it shrank by {left} bytes while it was packed" if left else ""
        while left:
            zeros = bytes(min(left, _CHUNK_BYTES))
            left -= self._outlet.write(zeros)
            await self._outlet.drain()
        self._outlet.write(bytes(-header.size % _BLOCK))
        return problem

    def _write_header(self, header: tarfile.TarInfo) -> None:
        self._outlet.write(header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    async def finish(self) -> None:
        self._outlet.write(bytes(2 * _BLOCK))


class _Zip:
    def __init__(self, outlet: _Outlet) -> None:
        self._outlet = outlet
        self._archive = zipfile.ZipFile(
            cast("IO[bytes]", outlet), "w", zipfile.ZIP_DEFLATED
        )  # all that it needs of one

    async def add(self, name: str, status: os.stat_result, directory: int, plain: str) -> str:
        # Zip has names in UTF-8 only: what is none gets the sign for that.
        text = os.fsencode(name).decode("utf-8", "replace")
        info = zipfile.ZipInfo(f"{text}/" if stat.S_ISDIR(status.st_mode) else text, _zip_time(status.st_mtime))
        info.external_attr = (status.st_mode & 0xFFFF) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        if stat.S_ISREG(status.st_mode):
            with _opened(directory, plain) as file, self._archive.open(info, "w", force_zip64=True) as entry:
                while data := file.read(_CHUNK_BYTES):
                    entry.write(data)
                    await self._outlet.drain()
        elif stat.S_ISDIR(status.st_mode):
            self._archive.writestr(info, b"")
        elif stat.S_ISLNK(status.st_mode):
            self._archive.writestr(info, os.fsencode(os.readlink(plain, dir_fd=directory)))
        else:
            return "pipes are left out"
        await self._outlet.drain()
        return "" if text == name else "its name is no UTF-8, which zip can't hold"

    async def finish(self) -> None:
        self._archive.close()


class _Tree:
    """Walks what is to be packed, by descriptors: a link is packed as a link wherever it is put meanwhile."""

    def __init__(self, path: str) -> None:
        """Raises `OSError`."""
        self.problems: list[str] = []
        self._levels: list[tuple[int, str, Iterator[str]]] = []
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._levels.append((top, "", iter(sorted(os.listdir(top)))))
        else:
            parent, name = os.path.split(os.path.realpath(path))
            self._levels.append((os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), "", iter([name])))

    def close(self) -> None:
        for level in self._levels:
            os.close(level[0])

    def note(self, name: str, why: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(f"{name}: {why}")

    async def walk(self) -> AsyncIterator[tuple[str, os.stat_result, int, str]]:
        """Yield name in the archive, status, and where to open it: a directory and a name in that."""
        while self._levels:
            directory, prefix, names = self._levels[-1]
            plain = next(names, None)
            if plain is None:
                os.close(self._levels.pop()[0])
                continue
            name = prefix + plain
            try:
                status = os.stat(plain, dir_fd=directory, follow_symlinks=False)
                yield name, status, directory, plain
                if stat.S_ISDIR(status.st_mode):
                    below = os.open(plain, _DIRECTORY, dir_fd=directory)
                    self._levels.append((below, f"{name}/", iter(sorted(os.listdir(below)))))
            except FileNotFoundError:
                continue
            except OSError as error:
                self.note(name, error.strerror or str(error))


def _opened(directory: int, name: str) -> io.FileIO:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    return io.FileIO(os.open(name, flags, dir_fd=directory))


def _content(file: io.FileIO, size: int) -> Iterator[bytes]:
    """Yield so many bytes, or what there is."""
    while size and (data := file.read(min(size, _CHUNK_BYTES))):
        size -= len(data)
        yield data


def _zip_time(mtime: float) -> tuple[int, int, int, int, int, int]:
    year, month, day, hour, minute, second = time.localtime(max(mtime, 0))[:6]
    return (year, month, day, hour, minute, second) if 1980 <= year <= 2107 else (1980, 1, 1, 0, 0, 0)
