"""Files: everything happens inside the guest, in its namespace, as the sandbox's user. Only bytes cross."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

from cellbox import errors
from cellbox.control.guest import Guest
from cellbox.control.link import Call, Data
from cellbox.protocol import files as values
from cellbox.wire import messages

_ANSWER_SECONDS = 120.0  # a big tree takes time to list or remove
_MAX_PATH_BYTES = 4096  # PATH_MAX of Linux
_MAX_DEPTH = 64
_MAX_ENTRIES = 200_000  # of one listing, which is held in memory as a whole
_LETTERS = {"file": "f", "directory": "d", "link": "l", "other": "o"}
_OutcomeT = TypeVar("_OutcomeT", bound=messages.Outcome)


class FileReading:
    """A file on its way out. Iterate for its bytes.

    `size` is the whole file's when it was opened, `length` what comes of it; None for pseudo files that do not know.
    When the file shrinks meanwhile, fewer bytes come and the iteration raises `GuestError` at its end.
    """

    def __init__(self, call: Call, opened: messages.FileOpened) -> None:
        self.size = opened.size
        self.length = opened.length if opened.length >= 0 else None
        self._call = call

    async def __aiter__(self) -> AsyncIterator[bytes]:
        sent = 0
        while (item := await self._call.receive()) is not None:
            if isinstance(item, Data):
                sent += len(item.payload)
                if self.length is not None and sent > self.length:
                    raise errors.GuestError("the guest sent more of the file than it announced")
                yield item.payload
        self._call.outcome(messages.FileRead)
        if self.length is not None and sent != self.length:
            raise errors.GuestError(f"the file changed while it was read: {sent} of {self.length} bytes came")


class Files:
    """The files of one sandbox. Paths are absolute; names that are no UTF-8 hold surrogate escapes."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    @contextlib.asynccontextmanager
    async def read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncGenerator[FileReading]:
        """Open a regular file for reading; raises before it yields when that can't be done."""
        async with self._guest.use() as link:
            call = link.open(messages.ReadFile(path=_checked(path), offset=offset, length=length))
            try:
                opened = await call.receive()
                if opened is None:
                    call.outcome(messages.FileRead)  # raises what was refused
                if not isinstance(opened, messages.FileOpened):
                    raise errors.GuestError("the guest sent a file without opening it")
                yield FileReading(call, opened)
            finally:
                call.abandon()

    async def write(
        self,
        path: str,
        chunks: AsyncIterator[bytes],
        *,
        append: bool = False,
        mode: int | None = None,
        user: str = "",
    ) -> values.FileWritten:
        """Write what `chunks` yields. If it raises, the old content stays (unless `append`) and the error goes on."""
        request = messages.WriteFile(path=_checked(path), append=append, mode=mode, user=user)
        written = await self._feed(request, chunks, messages.FileWritten)
        return values.FileWritten(path=path, bytes=written.size)

    async def list(
        self, path: str, depth: int = 1, *, limit: int | None = None, after: str = ""
    ) -> values.DirectoryListing:
        """List a directory whole, or with `limit` a page of it: entries in order of names, those behind `after`."""
        if limit == 0:
            raise errors.InvalidRequestError("limit must be at least 1")
        if depth != 1 and (limit is not None or after):
            raise errors.InvalidRequestError("only one level can be listed in pages: leave depth out")
        if not 1 <= depth <= _MAX_DEPTH:
            raise errors.InvalidRequestError(f"depth must be between 1 and {_MAX_DEPTH}")
        entries: list[values.FileInfo] = []
        async with self._guest.use() as link:
            call = link.open(messages.ListDirectory(path=_checked(path), depth=depth, limit=limit, after=after))
            try:
                while (item := await call.receive()) is not None:
                    if isinstance(item, messages.Entries):
                        entries.extend(_file_info(entry) for entry in item.entries)
                        if len(entries) > _MAX_ENTRIES:
                            raise errors.TooLargeError(
                                f"more than {_MAX_ENTRIES} entries: list less depth, or use a command such as `find`"
                            )
                listed = call.outcome(messages.Listed)
            finally:
                call.abandon()
        return values.DirectoryListing(path=path, entries=entries, problems=listed.problems, has_more=listed.has_more)

    async def stat(self, path: str) -> values.FileInfo:
        return _file_info(await self._ask(messages.Stat(path=_checked(path)), messages.FileInfo))

    async def make_directory(self, body: values.MakeDirectory) -> values.FileInfo:
        await self._ask(messages.MakeDirectory(path=_checked(body.path), mode=body.mode), messages.Done)
        return await self.stat(body.path)

    async def move(self, body: values.MoveFile) -> values.FileInfo:
        request = messages.Move(source=_checked(body.source), target=_checked(body.target), overwrite=body.overwrite)
        await self._ask(request, messages.Done)
        return await self.stat(body.target)

    async def remove(self, path: str, *, recursive: bool = True) -> None:
        await self._ask(messages.Remove(path=_checked(path), recursive=recursive), messages.Done)

    async def set_mode(self, body: values.SetMode) -> values.FileInfo:
        request = messages.SetMode(path=_checked(body.path), mode=body.mode, recursive=body.recursive)
        await self._ask(request, messages.Done)
        return await self.stat(body.path)

    async def watch(self, path: str, *, recursive: bool = False) -> AsyncGenerator[values.WatchEvent]:
        """Yield `WatchStarted`, then changes; `WatchEnded` when what is watched is gone. Closing it ends the watch."""
        async with self._guest.use() as link:
            call = link.open(messages.WatchFiles(path=_checked(path), recursive=recursive))
            try:
                is_started = False
                while (item := await call.receive()) is not None:
                    if not isinstance(item, messages.FileChanges):
                        raise errors.GuestError("the guest sent something else than changes of files")
                    if not is_started:
                        is_started = True
                        yield values.WatchStarted(path=path)
                    for change in item.changes:
                        yield values.FileChange(
                            kind=change.kind, path=change.path, is_dir=change.is_directory, target=change.target
                        )
                call.outcome(messages.Done)
                yield values.WatchEnded(path=path)
            finally:
                call.abandon()

    async def pack(self, path: str, archive_format: str = "tar") -> AsyncGenerator[bytes]:
        """Yield a file or directory as an archive. Sockets and devices are left out."""
        async with self._guest.use() as link:
            call = link.open(messages.Pack(path=_checked(path), format=archive_format))
            try:
                while (item := await call.receive()) is not None:
                    if isinstance(item, Data):
                        yield item.payload
                call.outcome(messages.Packed)
            finally:
                call.abandon()

    async def unpack(self, path: str, chunks: AsyncIterator[bytes], *, user: str = "") -> values.Unpacked:
        """Unpack the archive that `chunks` yields into a directory. What was unpacked before a failure stays."""
        done = await self._feed(messages.Unpack(path=_checked(path), user=user), chunks, messages.Unpacked)
        return values.Unpacked(path=path, entries=done.entries, bytes=done.size, problems=done.problems)

    async def _feed(
        self, request: messages.Request, chunks: AsyncIterator[bytes], expected: type[_OutcomeT]
    ) -> _OutcomeT:
        """Send what `chunks` yields as the input of an operation."""
        async with self._guest.use() as link:
            call = link.open(request)
            try:
                async for chunk in chunks:
                    if call.is_over:
                        break  # refused already: the outcome says why
                    await call.send(chunk)
                call.send_eof()
                return await call.finish(expected)
            finally:
                call.abandon()

    async def _ask(self, request: messages.Request, expected: type[_OutcomeT]) -> _OutcomeT:
        async with self._guest.use() as link:
            return await link.ask(request, expected, timeout_seconds=_ANSWER_SECONDS)


def _checked(path: str) -> str:
    """Refuse what no Linux path can be; what it means is for the guest to find out."""
    if not path.startswith("/"):
        raise errors.InvalidRequestError(f"path must be absolute, got {path[:200]!r}")
    if "\0" in path:
        raise errors.InvalidRequestError("a path can't hold a NUL character")
    if len(path.encode(errors="surrogateescape")) >= _MAX_PATH_BYTES:
        raise errors.InvalidRequestError(f"the path is longer than {_MAX_PATH_BYTES - 1} bytes")
    return path


def _file_info(info: messages.FileInfo) -> values.FileInfo:
    return values.FileInfo(
        name=info.name,
        path=info.path,
        is_dir=info.kind == "directory",
        size=info.size,
        mode=_LETTERS[info.kind],
        mtime=int(info.mtime),
        permissions=info.mode,
        uid=info.uid,
        gid=info.gid,
        target=info.target,
    )
