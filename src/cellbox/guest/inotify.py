"""The kernel's own news of changes: inotify on a path, or on every directory of a tree as it comes and goes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import stat
import struct
from contextlib import suppress

from cellbox.guest.pending import Pending

_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED, _ISDIR = 0x400, 0x800, 0x4000, 0x8000, 0x40000000
_WATCHED = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_EVENT = struct.Struct("iIII")
_READ_BYTES = 256 * 1024
_MAX_DIRECTORIES = 8192
"""Of one watch. In a larger tree the rest is not watched, which is told by `overflow`."""

_libc = ctypes.CDLL(None, use_errno=True)


class Inotify:
    """Fills `pending` until it is closed. Needs the event loop."""

    def __init__(self, path: str, recursive: bool, pending: Pending) -> None:
        """Raises `OSError` when the path can't be watched."""
        self._path = path
        self._recursive = recursive
        self._pending = pending
        self._paths: dict[int, str] = {}
        self._moved: tuple[int, str, bool] | None = None
        """The first half of a move: cookie, old path, is it a directory?"""
        self._descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "no more watches are possible")
        try:
            self._root = self._add(path)
            if recursive and stat.S_ISDIR(os.stat(path).st_mode):
                self._add_below(path, announce=False)
        except OSError:
            os.close(self._descriptor)
            raise
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _add(self, path: str) -> int:
        watch = _libc.inotify_add_watch(self._descriptor, os.fsencode(path), ctypes.c_uint32(_WATCHED))
        if watch < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._paths[watch] = path
        return watch

    def _add_below(self, top: str, *, announce: bool) -> None:
        """Watch the directories below `top`. What is in a new one may have come before its watch: `announce` it."""
        waiting = [top]
        while waiting:
            directory = waiting.pop()
            with suppress(OSError), os.scandir(directory) as entries:
                for entry in entries:
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if announce:
                        self._pending.add("created", entry.path, is_directory=is_directory)
                    if is_directory and self._add_directory(entry.path):
                        waiting.append(entry.path)

    def _add_directory(self, path: str) -> bool:
        if len(self._paths) >= _MAX_DIRECTORIES:
            self._pending.add("overflow", path)
            return False
        with suppress(OSError):  # it is gone already
            self._add(path)
            return True
        return False

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        position = 0
        while position < len(data):
            watch, mask, cookie, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size
            name = os.fsdecode(data[position : position + length].rstrip(b"\0"))
            position += length
            self._take(watch, mask, cookie, name)
        self._flush_move()

    def _take(self, watch: int, mask: int, cookie: int, name: str) -> None:
        if mask & _OVERFLOW:
            self._pending.add("overflow", self._path)
            return
        directory = self._paths.get(watch)
        if directory is None:
            return
        if mask & _IGNORED:
            del self._paths[watch]
            return
        path = f"{directory.rstrip('/')}/{name}" if name else directory
        is_directory = bool(mask & _ISDIR)
        if self._moved is not None and not (mask & _MOVED_TO and self._moved[0] == cookie):
            self._flush_move()
        if mask & _MOVED_FROM:
            self._moved = (cookie, path, is_directory)
        elif mask & _MOVED_TO:
            self._arrived(path, is_directory)
        elif mask & _CREATE:
            self._pending.add("created", path, is_directory=is_directory)
            self._watch_new(path, is_directory)
        elif mask & (_DELETE_SELF | _MOVE_SELF) and watch == self._root:
            self._pending.add("removed", self._path, is_directory=is_directory)
            self._pending.end()
        else:
            self._changed(watch, mask, path, bool(name))

    def _changed(self, watch: int, mask: int, path: str, has_name: bool) -> None:
        is_directory = bool(mask & _ISDIR)
        if mask & _DELETE:
            self._pending.add("removed", path, is_directory=is_directory)
        elif mask & _MODIFY:
            self._pending.add("modified", path)
        elif mask & _ATTRIB and (
            has_name or watch == self._root
        ):  # a directory's own is told by its parent's watch too
            self._pending.add("attributes", path, is_directory=is_directory)

    def _arrived(self, path: str, is_directory: bool) -> None:
        moved, self._moved = self._moved, None
        if moved is None:
            self._pending.add("created", path, is_directory=is_directory)
            self._watch_new(path, is_directory)
            return
        self._pending.add("moved", moved[1], is_directory=is_directory, target=path)
        for watch, old in self._below(moved[1]):
            self._paths[watch] = path + old.removeprefix(moved[1])  # a watch stays with its directory

    def _flush_move(self) -> None:
        """What was moved out of sight is gone."""
        moved, self._moved = self._moved, None
        if moved is not None:
            self._pending.add("removed", moved[1], is_directory=moved[2])
            self._forget_below(moved[1])

    def _watch_new(self, path: str, is_directory: bool) -> None:
        if is_directory and self._recursive and self._add_directory(path):
            self._add_below(path, announce=True)

    def _forget_below(self, top: str) -> None:
        for watch, _ in self._below(top):
            del self._paths[watch]
            _libc.inotify_rm_watch(self._descriptor, watch)

    def _below(self, top: str) -> list[tuple[int, str]]:
        return [(watch, path) for watch, path in self._paths.items() if path == top or path.startswith(f"{top}/")]
