"""File operations, in the sandbox's own namespace: whatever a path or link says, it can only mean the user's files.

Calls block the event loop for as long as one small file operation takes, which is microseconds: the disk is memory.
Whatever takes many of them gives the loop its turn in between.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Literal

from cellbox.guest import accounts, packing, trees, unpacking
from cellbox.guest.channel import Handler, Refusal, Stream
from cellbox.guest.failures import check_path, refusing
from cellbox.wire.messages import (
    Done,
    Entries,
    FileInfo,
    FileOpened,
    FileRead,
    FileWritten,
    ListDirectory,
    Listed,
    MakeDirectory,
    Move,
    Pack,
    ReadFile,
    Remove,
    Request,
    SetMode,
    Stat,
    Unpack,
    WriteFile,
)

_CHUNK_BYTES = 64 * 1024
_PSEUDO_BYTES = 64 * 1024 * 1024
"""Most that is read of a file that says it is empty: what is in `/proc` has no size before it is read."""
_ENTRIES = 1000
"""Per message of a listing. Its JSON is some 200 KB."""
_STATS_PER_TURN = 200
_MAX_PROBLEMS = 100
_NEW_FILE_MODE = 0o644
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def handlers() -> dict[type[Request], Handler]:
    return {
        ReadFile: read,
        WriteFile: write,
        Stat: info,
        ListDirectory: list_directory,
        MakeDirectory: make_directory,
        Move: move,
        Remove: remove,
        SetMode: set_mode,
        Pack: packing.pack,
        Unpack: unpacking.unpack,
    }


async def read(stream: Stream, request: ReadFile) -> FileRead:
    """Send a file. One that shrinks meanwhile ends early, one that grows is sent as far as it went when opened."""
    path = check_path(request.path)
    if request.offset < 0 or (request.length is not None and request.length < 0):
        raise Refusal("invalid_request", "offset and length can't be negative")
    with refusing(path):
        # Non-blocking, because opening a FIFO would wait for a writer that never comes.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        size = _regular_size(descriptor, path)
        left = max(size - request.offset, 0) if size else _PSEUDO_BYTES
        if request.length is not None:
            left = min(left, request.length)
        sent = 0
        with refusing(path):
            if request.offset:
                os.lseek(descriptor, request.offset, os.SEEK_SET)
            data = os.read(descriptor, min(left, _CHUNK_BYTES))
            # A file in /proc says that it is empty and is not; only its end will tell how long it was.
            await stream.emit(FileOpened(size=size, length=-1 if data and not size else left if size else 0))
            while data and not stream.cancelled.is_set():
                left -= len(data)
                sent += len(data)
                await stream.send(data)
                await asyncio.sleep(0)
                data = os.read(descriptor, min(left, _CHUNK_BYTES))
    finally:
        os.close(descriptor)
    if stream.cancelled.is_set():
        raise ConnectionAbortedError("the host gave the operation up")
    return FileRead(size=size, sent=sent)


async def write(stream: Stream, request: WriteFile) -> FileWritten:
    """Write a file, whole or not at all; `append` writes in place. `user` owns it, and can do only what it may do."""
    path = check_path(request.path)
    if request.mode is not None and not 0 <= request.mode <= 0o7777:
        raise Refusal("invalid_request", f"no possible permission bits: {request.mode}")
    owner = _find_owner(request.user)
    with refusing(path):
        if path.endswith("/"):
            raise IsADirectoryError(21, "a file's path can't end with a slash")
        with accounts.acting_as(owner):
            old = _status(path)
            if old is not None and not stat.S_ISREG(old.st_mode):
                raise Refusal("path_conflict", f"{path}: not a regular file")
            target = os.path.realpath(path)
            _make_directories(os.path.dirname(target), 0o755)
        if request.append:
            size = await _append(stream, target, request.mode, owner, is_new=old is None)
        else:
            size = await _replace(stream, target, request.mode, owner, old)
    return FileWritten(size=size)


async def _replace(
    stream: Stream, target: str, mode: int | None, owner: accounts.Account | None, old: os.stat_result | None
) -> int:
    directory = os.path.dirname(target)
    # A short name of our own: the target's may be as long as names can be.
    partial = os.path.join(directory, f".cellbox-{secrets.token_hex(8)}")
    with accounts.acting_as(owner):
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            size = await _receive(stream, descriptor)
            if owner is not None:
                os.fchown(descriptor, owner.uid, owner.gid)
            elif old is not None:
                os.fchown(descriptor, old.st_uid, old.st_gid)
            if mode is None:
                mode = _NEW_FILE_MODE if old is None else stat.S_IMODE(old.st_mode)
            os.fchmod(descriptor, mode)  # after the owner, whose change clears set-uid bits
        finally:
            os.close(descriptor)
        with accounts.acting_as(owner):
            os.rename(partial, target)
    except BaseException:
        with suppress(OSError), accounts.acting_as(owner):
            os.unlink(partial)
        raise
    return size


async def _append(
    stream: Stream, target: str, mode: int | None, owner: accounts.Account | None, *, is_new: bool
) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with accounts.acting_as(owner):
        descriptor = os.open(target, flags, _NEW_FILE_MODE)
    try:
        _regular_size(descriptor, target)  # it may have become a FIFO since we looked
        if owner is not None and is_new:
            os.fchown(descriptor, owner.uid, owner.gid)
        if mode is not None:
            os.fchmod(descriptor, mode)
        return await _receive(stream, descriptor)
    finally:
        os.close(descriptor)


async def _receive(stream: Stream, descriptor: int) -> int:
    size = 0
    while data := await stream.receive():
        trees.write_all(descriptor, data)
        size += len(data)
        await asyncio.sleep(0)
    return size


async def info(_: Stream, request: Stat) -> FileInfo:
    path = check_path(request.path)
    with refusing(path):
        return _describe(path, os.path.basename(path.rstrip("/")) or "/", os.lstat(path))


async def list_directory(stream: Stream, request: ListDirectory) -> Listed:
    path = check_path(request.path)
    if request.depth < 1:
        raise Refusal("invalid_request", "depth must be at least 1")
    with refusing(path):
        top = _Level(path, os.open(path, _DIRECTORY), after=request.after)
    problems: list[str] = []
    batch: list[FileInfo] = []
    count = 0
    has_more = False
    levels = [top]
    try:
        async for entry in _walk(levels, request.depth, problems):
            if request.limit is not None and count + len(batch) >= request.limit:
                has_more = True
                break
            batch.append(entry)
            if len(batch) == _ENTRIES:
                if stream.cancelled.is_set():
                    raise ConnectionAbortedError("the host gave the operation up")
                await stream.emit(Entries(entries=batch))
                count += len(batch)
                batch = []
    finally:
        for level in levels:
            os.close(level.descriptor)
    if batch:
        await stream.emit(Entries(entries=batch))
        count += len(batch)
    return Listed(count=count, problems=problems, has_more=has_more)


class _Level:
    """A directory that is being listed. Its entries are asked for by descriptor: a path of a thousand parts is slow."""

    def __init__(self, path: str, descriptor: int, *, after: str = "") -> None:
        self.path = path.rstrip("/")
        self.descriptor = descriptor
        self.names = iter(sorted(name for name in os.listdir(descriptor) if name > after))


async def _walk(levels: list[_Level], depth: int, problems: list[str]) -> AsyncIterator[FileInfo]:
    """Yield what is below the only one of `levels`, each directory before what it holds.

    Entries that vanish meanwhile are left out. The descriptors in `levels` are the caller's to close.
    """
    steps = 0
    while levels:
        level = levels[-1]
        name = next(level.names, None)
        if name is None:
            levels.pop()
            os.close(level.descriptor)
            continue
        path = f"{level.path}/{name}"
        steps += 1
        if steps % _STATS_PER_TURN == 0:
            await asyncio.sleep(0)
        try:
            status = os.stat(name, dir_fd=level.descriptor, follow_symlinks=False)
            entry = _describe(path, name, status, level.descriptor)
            yield entry
            if entry.kind == "directory" and len(levels) < depth:
                check_path(path)
                levels.append(_Level(path, os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=level.descriptor)))
        except FileNotFoundError:
            continue
        except OSError as error:
            _note(problems, path, error.strerror or str(error))
        except Refusal as refusal:
            _note(problems, path[:200], str(refusal))


async def make_directory(_: Stream, request: MakeDirectory) -> Done:
    path = check_path(request.path)
    if not 0 <= request.mode <= 0o7777:
        raise Refusal("invalid_request", f"no possible permission bits: {request.mode}")
    with refusing(path):
        if not os.path.isdir(path):
            _make_directories(path, request.mode)
    return Done()


async def move(_: Stream, request: Move) -> Done:
    source, target = check_path(request.source).rstrip("/") or "/", check_path(request.target).rstrip("/") or "/"
    with refusing(source):
        os.lstat(source)
    with refusing(target):
        if not request.overwrite and os.path.lexists(target):
            raise Refusal("path_conflict", f"{target}: exists already")
        _make_directories(os.path.dirname(target), 0o755)
        try:
            os.rename(source, target)
        except OSError as error:
            if error.errno != 18:  # EXDEV
                raise
            await trees.move_across(source, target)
    return Done()


async def remove(_: Stream, request: Remove) -> Done:
    path = check_path(request.path).rstrip("/") or "/"
    if path == "/":
        raise Refusal("invalid_request", "the root directory can't be removed")
    with refusing(path):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
        elif request.recursive:
            await trees.remove_tree(path)
        else:
            os.rmdir(path)
    return Done()


async def set_mode(_: Stream, request: SetMode) -> Done:
    path = check_path(request.path)
    if not 0 <= request.mode <= 0o7777:
        raise Refusal("invalid_request", f"no possible permission bits: {request.mode}")
    with refusing(path):
        if request.recursive and os.path.isdir(path):
            await trees.set_modes(path, request.mode)
        os.chmod(path, request.mode)
    return Done()


def _regular_size(descriptor: int, path: str) -> int:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        what = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise Refusal("path_conflict", f"{path}: {what}")
    return status.st_size


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _make_directories(path: str, mode: int) -> None:
    """Make a directory and its parents. Only those that are made get the mode."""
    missing: list[str] = []
    while path not in ("", "/") and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        os.mkdir(directory)
        os.chmod(directory, mode if directory == missing[0] else 0o755)


def _find_owner(user: str) -> accounts.Account | None:
    try:
        return accounts.find(user) if user else None
    except LookupError as error:
        raise Refusal("invalid_request", error.args[0]) from None


def _describe(path: str, name: str, status: os.stat_result, directory: int | None = None) -> FileInfo:
    """Describe a file. `name` is looked up in `directory` if there is one, else `path`."""
    kind: Literal["file", "directory", "link", "other"] = "other"
    target = ""
    if stat.S_ISREG(status.st_mode):
        kind = "file"
    elif stat.S_ISDIR(status.st_mode):
        kind = "directory"
    elif stat.S_ISLNK(status.st_mode):
        kind = "link"
        with suppress(OSError):
            target = os.readlink(path) if directory is None else os.readlink(name, dir_fd=directory)
    return FileInfo(
        path=path,
        name=name,
        kind=kind,
        size=status.st_size,
        mode=stat.S_IMODE(status.st_mode),
        mtime=status.st_mtime,
        uid=status.st_uid,
        gid=status.st_gid,
        target=target,
    )


def _note(problems: list[str], path: str, why: str) -> None:
    if len(problems) < _MAX_PROBLEMS:
        problems.append(f"{path}: {why}")
