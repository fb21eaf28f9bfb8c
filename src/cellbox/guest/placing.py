"""Puts the entries of an archive into a directory, and nowhere else: each step is taken by descriptor, past no link."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from cellbox.guest import accounts
from cellbox.guest.channel import Refusal
from cellbox.guest.tar_reader import Member

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY_MODE = 0o755


class Placer:
    """Makes what members of archives say, below `top`, as a user and with that user's rights."""

    def __init__(self, top: str, owner: accounts.Account | None) -> None:
        """Raises `OSError` when `top` can't be made or is no directory."""
        self._owner = owner
        with accounts.acting_as(owner):
            os.makedirs(top, mode=_DIRECTORY_MODE, exist_ok=True)
            self._top = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._parent: tuple[tuple[str, ...], int] | None = None
        """The directory that the last entry went into: archives come sorted."""
        self._modes: list[tuple[tuple[str, ...], int]] = []

    def close(self) -> None:
        self._leave()
        os.close(self._top)

    def open_file(self, member: Member) -> int:
        """Make an empty file in place of what has its name, and return its descriptor. Raises `OSError`."""
        parts = _parts(member.name)
        with accounts.acting_as(self._owner):
            parent = self._enter(parts[:-1])
            _clear(parent, parts[-1])
            descriptor = os.open(parts[-1], _NEW_FILE, 0o600, dir_fd=parent)
            os.fchmod(descriptor, member.mode & 0o777)  # not the bits that lend rights
        return descriptor

    def finish_file(self, descriptor: int, member: Member) -> None:
        """Set the time of a file that is written. Raises `OSError`."""
        os.utime(descriptor, (member.mtime, member.mtime))

    def place(self, member: Member) -> None:
        """Make a directory or a link. Raises `OSError`."""
        parts = _parts(member.name)
        with accounts.acting_as(self._owner):
            if member.kind == "directory":
                if parts:
                    self._enter(parts)
                    self._modes.append((parts, member.mode & 0o777))
                return
            parent = self._enter(parts[:-1])
            _clear(parent, parts[-1])
            if member.kind == "link":
                os.symlink(member.target, parts[-1], dir_fd=parent)
                return
            source = _parts(member.target)
            origin = self._walk(source[:-1], make=False)
            try:
                os.link(source[-1], parts[-1], src_dir_fd=origin, dst_dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(origin)

    def finish(self) -> None:
        """Give directories their modes, which may forbid what was still to be done in them. Raises `OSError`."""
        with accounts.acting_as(self._owner):
            for parts, mode in reversed(self._modes):
                if mode != _DIRECTORY_MODE:
                    descriptor = self._walk(parts, make=False)
                    try:
                        os.fchmod(descriptor, mode)
                    finally:
                        os.close(descriptor)

    def _enter(self, parts: tuple[str, ...]) -> int:
        if self._parent is None or self._parent[0] != parts:
            self._leave()
            self._parent = (parts, self._walk(parts, make=True))
        return self._parent[1]

    def _leave(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None

    def _walk(self, parts: tuple[str, ...], *, make: bool) -> int:
        here = os.dup(self._top)
        for part in parts:
            try:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, _DIRECTORY_MODE, dir_fd=here)
                below = os.open(part, _DIRECTORY, dir_fd=here)
            finally:
                os.close(here)
            here = below
        return here


def _parts(name: str) -> tuple[str, ...]:
    """Take a member's name apart. Raises `Refusal` for one that leads up, or that names nothing."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts or "\0" in name:
        raise Refusal("invalid_request", f"the archive holds an entry that leads out of it: {name[:200]!r}")
    return parts


def _clear(directory: int, name: str) -> None:
    """Remove a file or link of this name; a directory stays, and is in the way."""
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise IsADirectoryError(21, f"a directory is in the way of a file: {name}")
        os.unlink(name, dir_fd=directory)
