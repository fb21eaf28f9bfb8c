"""Unpacking an archive that comes from the host: tar and gzip as they arrive, zip by way of the sandbox's own disk."""

from __future__ import annotations

import asyncio
import codecs
import os
import secrets
import stat
import time
import zipfile
import zlib
from contextlib import suppress
from typing import IO

from cellbox.guest import accounts, tar_reader, trees
from cellbox.guest.channel import Refusal, Stream
from cellbox.guest.failures import check_path, refusing
from cellbox.guest.placing import Placer
from cellbox.guest.tar_reader import Member, Source
from cellbox.wire.messages import Unpack, Unpacked

codecs.lookup("cp437")  # of names in old zip files: nothing can be imported once the user's root is entered
_CHUNK_BYTES = 64 * 1024
_MAX_PROBLEMS = 100


async def unpack(stream: Stream, request: Unpack) -> Unpacked:
    path = check_path(request.path)
    try:
        owner = accounts.find(request.user) if request.user else None
    except LookupError as error:
        raise Refusal("invalid_request", error.args[0]) from None
    with refusing(path):
        placer = Placer(path, owner)
        try:
            unpacking = _Unpacking(placer)
            source = Source(stream)
            start = await source.begin()
            if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
                await unpacking.unzip(source, path, owner)
            else:
                await unpacking.untar(source)
            placer.finish()
        finally:
            placer.close()
    return Unpacked(entries=unpacking.entries, size=unpacking.size, problems=unpacking.problems)


class _Unpacking:
    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self.entries = 0
        self.size = 0
        self.problems: list[str] = []

    async def untar(self, source: Source) -> None:
        async for member in tar_reader.members(source):
            if member.kind == "file":
                await self._place_file(source, member)
            elif member.kind == "other":
                async for _ in tar_reader.content(source, member):
                    pass
                self._leave_out(member.name, "devices and pipes are left out")
                continue
            else:
                self._placer.place(member)
            self.entries += 1
            await asyncio.sleep(0)

    async def _place_file(self, source: Source, member: Member) -> None:
        descriptor = self._placer.open_file(member)
        try:
            async for data in tar_reader.content(source, member):
                trees.write_all(descriptor, data)
                self.size += len(data)
                await asyncio.sleep(0)
            self._placer.finish_file(descriptor, member)
        finally:
            os.close(descriptor)

    async def unzip(self, source: Source, directory: str, owner: accounts.Account | None) -> None:
        # The list of what is in a zip stands at its end, so it has to be here as a whole first.
        spool = os.path.join(directory, f".cellbox-{secrets.token_hex(8)}")
        with accounts.acting_as(owner):
            descriptor = os.open(spool, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.unlink(spool)
        with os.fdopen(descriptor, "w+b") as file:
            await self._unzip(source, file)

    async def _unzip(self, source: Source, file: IO[bytes]) -> None:
        while data := await source.read(_CHUNK_BYTES):
            file.write(data)
            await asyncio.sleep(0)
        file.flush()
        try:
            with zipfile.ZipFile(file) as archive:
                for info in archive.infolist():
                    await self._place_zipped(archive, info)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
            raise Refusal("invalid_request", f"the zip archive can't be read: {error}") from None

    async def _place_zipped(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        bits = info.external_attr >> 16
        mode = stat.S_IMODE(bits) or (0o755 if info.is_dir() else 0o644)
        mtime = 0.0
        with suppress(ValueError, OverflowError):
            mtime = max(time.mktime((*info.date_time, 0, 0, -1)), 0.0)
        member = Member(name=info.filename, kind="directory" if info.is_dir() else "file", mode=mode, mtime=mtime)
        self.entries += 1
        await asyncio.sleep(0)
        if info.is_dir():
            self._placer.place(member)
            return
        if stat.S_ISLNK(bits):
            with archive.open(info) as content:
                target = os.fsdecode(content.read(4096))
            self._placer.place(Member(name=info.filename, kind="link", target=target))
            return
        descriptor = self._placer.open_file(member)
        try:
            with archive.open(info) as content:
                while data := content.read(_CHUNK_BYTES):
                    trees.write_all(descriptor, data)
                    self.size += len(data)
                    await asyncio.sleep(0)
            self._placer.finish_file(descriptor, member)
        finally:
            os.close(descriptor)

    def _leave_out(self, name: str, why: str) -> None:
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(f"{name[:200]}: {why}")
