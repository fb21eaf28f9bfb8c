"""Files: contents travel as raw bytes in both directions, in step with whoever is slower."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote_from_bytes

from starlette.types import Send

from cellbox import errors
from cellbox.control.files import Files
from cellbox.protocol.files import (
    DirectoryListing,
    FileInfo,
    FileWritten,
    MakeDirectory,
    MoveFile,
    SetMode,
    Unpacked,
    WatchEnded,
    WatchEvent,
)
from cellbox.protocol.operations import SANDBOX_FILES, WORKSPACE_FILES
from cellbox.server.answers import RawHeaders
from cellbox.server.call import Answer, Call
from cellbox.server.routing import Handlers
from cellbox.server.streams import EventStream

handlers = Handlers()

_RANGE = re.compile(rb"bytes=(\d{0,19})-(\d{0,19})")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._ -]+")


@contextlib.asynccontextmanager
async def _files(call: Call[Any]) -> AsyncGenerator[Files]:
    """The files of the sandbox or workspace in the path."""
    if "sandbox_id" in call.parameters:
        yield call.sandbox().files
        return
    async with call.control.workspace_files.use(call.caller.owner, call.parameters["name"]) as files:
        yield files


@handlers.handles(SANDBOX_FILES.read)
@handlers.handles(WORKSPACE_FILES.read)
async def read_file(call: Call[None]) -> Answer:
    return _Download(call, _path(call))


@handlers.handles(SANDBOX_FILES.write)
@handlers.handles(WORKSPACE_FILES.write)
async def write_file(call: Call[bytes]) -> FileWritten:
    async with _files(call) as files:
        return await files.write(
            _path(call),
            call.chunks(call.control.settings.max_file_bytes),
            append=call.flag("append"),
            mode=_mode(call),
            user=call.query.get("user", ""),
        )


@handlers.handles(SANDBOX_FILES.remove)
@handlers.handles(WORKSPACE_FILES.remove)
async def remove_file(call: Call[None]) -> None:
    async with _files(call) as files:
        await files.remove(_path(call), recursive=call.flag("recursive", default=True))


@handlers.handles(SANDBOX_FILES.list)
@handlers.handles(WORKSPACE_FILES.list)
async def list_directory(call: Call[None]) -> DirectoryListing:
    depth = call.number("depth", 1)
    async with _files(call) as files:
        return await files.list(
            call.query.get("path") or "/",
            1 if depth is None else depth,
            limit=call.number("limit"),
            after=call.query.get("after", ""),
        )


@handlers.handles(SANDBOX_FILES.stat)
@handlers.handles(WORKSPACE_FILES.stat)
async def stat_file(call: Call[None]) -> FileInfo:
    async with _files(call) as files:
        return await files.stat(_path(call))


@handlers.handles(SANDBOX_FILES.make_directory)
@handlers.handles(WORKSPACE_FILES.make_directory)
async def make_directory(call: Call[MakeDirectory]) -> FileInfo:
    async with _files(call) as files:
        return await files.make_directory(call.body)


@handlers.handles(SANDBOX_FILES.move)
@handlers.handles(WORKSPACE_FILES.move)
async def move_file(call: Call[MoveFile]) -> FileInfo:
    async with _files(call) as files:
        return await files.move(call.body)


@handlers.handles(SANDBOX_FILES.set_mode)
@handlers.handles(WORKSPACE_FILES.set_mode)
async def set_mode(call: Call[SetMode]) -> FileInfo:
    async with _files(call) as files:
        return await files.set_mode(call.body)


@handlers.handles(SANDBOX_FILES.watch)
@handlers.handles(WORKSPACE_FILES.watch)
async def watch_files(call: Call[None]) -> Answer:
    path, recursive = _path(call), call.flag("recursive")
    return EventStream(call, _watch(call, path, recursive), terminal=WatchEnded)


async def _watch(call: Call[None], path: str, recursive: bool) -> AsyncGenerator[WatchEvent]:
    async with _files(call) as files, contextlib.aclosing(files.watch(path, recursive=recursive)) as events:
        async for event in events:
            yield event


@handlers.handles(SANDBOX_FILES.pack)
@handlers.handles(WORKSPACE_FILES.pack)
async def pack_files(call: Call[None]) -> Answer:
    return _ArchiveDownload(call, _path(call), call.query.get("format") or "tar")


@handlers.handles(SANDBOX_FILES.unpack)
@handlers.handles(WORKSPACE_FILES.unpack)
async def unpack_files(call: Call[bytes]) -> Unpacked:
    async with _files(call) as files:
        chunks = call.chunks(call.control.settings.max_file_bytes)
        return await files.unpack(_path(call), chunks, user=call.query.get("user", ""))


def _path(call: Call[bytes] | Call[None]) -> str:
    path = call.query.get("path", "")
    if not path:
        raise errors.InvalidRequestError("path required")
    return path


def _mode(call: Call[bytes]) -> int | None:
    mode = call.number("mode", base=8)
    if mode is not None and mode > 0o7777:
        raise errors.InvalidRequestError("query parameter 'mode' must be at most 7777")
    return mode


class _Download(Answer):
    """A file's bytes, or one range of them."""

    def __init__(self, call: Call[None], path: str) -> None:
        self._call = call
        self._path = path

    async def send_to(self, send: Send) -> None:
        async with _files(self._call) as files:
            await self._send(files, send)

    async def _send(self, files: Files, send: Send) -> None:
        match = _RANGE.fullmatch(self._call.headers.get(b"range", b"").replace(b" ", b""))
        offset, length = 0, None
        if match is not None and match[0] != b"bytes=-":
            first, last = match.groups()
            if not first:  # the last so many bytes
                size = (await files.stat(self._path)).size
                offset = max(size - int(last), 0)
                if int(last) == 0:
                    raise _unsatisfiable(size)
            else:
                offset = int(first)
                length = int(last) - offset + 1 if last else None
                if length is not None and length <= 0:
                    match, offset, length = None, 0, None  # malformed: to be ignored, says RFC 9110
        is_range = match is not None and match[0] != b"bytes=-"
        with self._call.cancelled_on_disconnect():
            async with files.read(self._path, offset, length) as reading:
                headers = _headers(self._path)
                status = 200
                if is_range and reading.length is not None:
                    if reading.length == 0:
                        raise _unsatisfiable(reading.size)
                    status = 206
                    last_byte = offset + reading.length - 1
                    headers.append((b"content-range", b"bytes %d-%d/%d" % (offset, last_byte, reading.size)))
                if reading.length is not None:
                    headers.append((b"content-length", b"%d" % reading.length))
                    headers.append((b"accept-ranges", b"bytes"))
                await send({"type": "http.response.start", "status": status, "headers": headers})
                async for chunk in reading:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class _ArchiveDownload(Answer):
    """An archive, made as it is sent: its length is not known before."""

    def __init__(self, call: Call[None], path: str, archive_format: str) -> None:
        self._call, self._path, self._format = call, path, archive_format

    async def send_to(self, send: Send) -> None:
        name = f"{self._path.rstrip('/') or '/root'}.{self._format}"
        with self._call.cancelled_on_disconnect():
            async with _files(self._call) as files, contextlib.aclosing(files.pack(self._path, self._format)) as chunks:
                is_started = False
                async for chunk in chunks:
                    if not is_started:
                        is_started = True
                        await send({"type": "http.response.start", "status": 200, "headers": _headers(name)})
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _headers(path: str) -> RawHeaders:
    # Never shown by a browser under our origin, whatever the sandbox wrote into it.
    return [
        (b"content-type", b"application/octet-stream"),
        (b"content-disposition", _disposition(path)),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"sandbox"),
        (b"cache-control", b"no-store"),
    ]


def _disposition(path: str) -> bytes:
    name = path.rstrip("/").rpartition("/")[2] or "file"
    if _PLAIN_NAME.fullmatch(name):
        return f'attachment; filename="{name}"'.encode()
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name)
    encoded = quote_from_bytes(name.encode("utf-8", "surrogateescape"), safe="")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}".encode()


def _unsatisfiable(size: int) -> errors.InvalidRequestError:
    return errors.InvalidRequestError(
        "the file has no such bytes", http_status=416, details={"size": size, "content_range": f"bytes */{size}"}
    )
