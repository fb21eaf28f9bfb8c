"""Removing and copying whole directory trees: any depth, any size, in steps that leave the event loop its turn.

Nothing here recurses or keeps a descriptor per level, so a tree of 10,000 levels is as good as any other.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import stat
from contextlib import suppress

_STEPS = 200
"""File operations between two turns of the event loop: about a millisecond under gVisor."""
_COPY_BYTES = 64 * 1024


class _Pace:
    """Gives the event loop its turn now and then."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps = 0

    async def step(self) -> None:
        self._steps += 1
        if self._steps >= _STEPS:
            self._steps = 0
            await asyncio.sleep(0)


async def remove_tree(path: str) -> None:
    """Remove a directory and all it holds; links are removed, never followed. Raises `OSError`."""
    pace = _Pace()
    here = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    levels: list[_Level] = []
    try:
        levels.append(await _empty(here, pace))
        while True:
            level = levels[-1]
            if level.directories:
                name = level.directories[-1]
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
                os.close(here)
                here = below
                levels.append(await _empty(here, pace))
                continue
            levels.pop()
            if not levels:
                break
            above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = above
            if _identity(here) != levels[-1].identity:
                # Somebody moved the directory meanwhile; going on would remove what nobody asked for.
                raise OSError(errno.EBUSY, "a directory was moved while it was being removed")
            os.rmdir(levels[-1].directories.pop(), dir_fd=here)
            await pace.step()
    finally:
        os.close(here)
    os.rmdir(path)


class _Level:
    """A directory on the way down: which it is, and the subdirectories that are still to be removed."""

    __slots__ = ("directories", "identity")

    def __init__(self, identity: tuple[int, int], directories: list[str]) -> None:
        self.identity = identity
        self.directories = directories


async def _empty(directory: int, pace: _Pace) -> _Level:
    """Remove everything in a directory that is no directory itself."""
    directories: list[str] = []
    with os.scandir(directory) as entries:
        found = list(entries)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            directories.append(entry.name)
        else:
            with suppress(FileNotFoundError):
                os.unlink(entry.name, dir_fd=directory)
        await pace.step()
    return _Level(_identity(directory), directories)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


async def set_modes(path: str, mode: int) -> None:
    """Set the permission bits of all below a directory but links, which have none. Raises `OSError`."""
    pace = _Pace()
    waiting = [path]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                if not entry.is_symlink():
                    with suppress(FileNotFoundError):
                        os.chmod(entry.path, mode)
                await pace.step()


async def move_across(source: str, target: str) -> None:
    """Move to another file system: copy beside the target, put in its place, remove the source. Raises `OSError`."""
    partial = os.path.join(os.path.dirname(target), f".cellbox-{secrets.token_hex(8)}")
    try:
        await _copy(source, partial)
        os.rename(partial, target)
    except BaseException:
        if os.path.isdir(partial) and not os.path.islink(partial):
            await remove_tree(partial)
        elif os.path.lexists(partial):
            os.unlink(partial)
        raise
    if os.path.isdir(source) and not os.path.islink(source):
        await remove_tree(source)
    else:
        os.unlink(source)


async def _copy(source: str, target: str) -> None:
    """Copy a file or a tree with modes, owners and times; links stay links."""
    pace = _Pace()
    directories: list[tuple[str, os.stat_result]] = []
    waiting = [(source, target)]
    while waiting:
        old, new = waiting.pop()
        status = os.lstat(old)
        if stat.S_ISDIR(status.st_mode):
            os.mkdir(new, 0o700)
            directories.append((new, status))
            waiting += [(os.path.join(old, name), os.path.join(new, name)) for name in os.listdir(old)]
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(old), new)
            os.chown(new, status.st_uid, status.st_gid, follow_symlinks=False)
        elif stat.S_ISREG(status.st_mode):
            await _copy_file(old, new)
            _take_over(new, status)
        elif stat.S_ISFIFO(status.st_mode):
            os.mkfifo(new)
            _take_over(new, status)
        else:
            raise OSError(errno.EINVAL, f"sockets and devices can't be moved to another file system: {old}")
        await pace.step()
    for new, status in reversed(directories):  # last, since a directory without write permission takes no entries
        _take_over(new, status)


async def _copy_file(source: str, target: str) -> None:
    reading = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while data := os.read(reading, _COPY_BYTES):
                write_all(writing, data)
                await asyncio.sleep(0)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`, however little the kernel takes at a time. Raises `OSError`."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _take_over(path: str, status: os.stat_result) -> None:
    os.chown(path, status.st_uid, status.st_gid)
    os.chmod(path, stat.S_IMODE(status.st_mode))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
