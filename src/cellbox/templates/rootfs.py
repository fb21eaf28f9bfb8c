"""Touches a template's root filesystem from the host, which is only safe with care: what built it may be hostile.

A step of a recipe runs as root in the sandbox and can leave a symbolic link wherever the host might write or read
next. So the host opens everything here component by component and follows no link at all, and never runs or unpacks
anything. Whatever needs more than that is done inside a sandbox (`sandboxed.py`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cellbox.templates.commands import host_environment, run_command
from cellbox.templates.events import Step, StepError

_READ_LIMIT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a root filesystem consists of."""

    files: int
    size_bytes: int
    """Space taken on disk, every hard-linked file counted once."""


@contextmanager
def open_directory(rootfs: Path, inner: str) -> Generator[int]:
    """Open a directory inside `rootfs` following no link. Raises `OSError` if a component is one or is missing."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(rootfs, flags)
    try:
        for part in filter(None, inner.split("/")):
            if part == "..":
                raise ValueError(f"{inner!r} leaves the root filesystem")
            deeper = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)


def read_file(rootfs: Path, inner: str) -> bytes | None:
    """Return the content of a regular file inside `rootfs`, or None if there is none without following links."""
    folder, _, name = inner.rpartition("/")
    try:
        with open_directory(rootfs, folder) as directory:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return None
                return file.read(_READ_LIMIT)
    except OSError:
        return None


def read_link(rootfs: Path, inner: str) -> str | None:
    """Return where a link inside `rootfs` points, or None if it is none."""
    folder, _, name = inner.rpartition("/")
    try:
        with open_directory(rootfs, folder) as directory:
            return os.readlink(name, dir_fd=directory)
    except OSError:
        return None


def write_file(rootfs: Path, inner: str, content: bytes, mode: int = 0o644) -> None:
    """Put a file into an existing directory inside `rootfs`, replacing what had its name, through no link."""
    folder, _, name = inner.rpartition("/")
    temporary = f".{name[:64]}.{secrets.token_hex(4)}"
    with open_directory(rootfs, folder) as directory:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, mode, dir_fd=directory)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                os.fchmod(descriptor, mode)
            os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise


async def copy_tree(source: Path, target: Path, step: Step) -> None:
    """Copy a root filesystem, all of it as it is, to `target`, which must not exist; share blocks where possible."""
    await run_command(["cp", "-a", "--reflink=auto", "--", source, target], step, environment=host_environment())


async def remove_tree(path: Path) -> None:
    """Remove a tree that was perhaps never whole. `shutil.rmtree` follows no links on Linux."""
    await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)


async def verify(rootfs: Path) -> Contents:
    """Look at every entry and refuse what no template may have: device nodes, sockets and pipes (attack: T006).

    Raises `StepError` that names the first offenders.
    """
    return await asyncio.to_thread(_walk, rootfs)


def _walk(rootfs: Path) -> Contents:
    files, size, bad = 0, 0, list[str]()
    linked: set[tuple[int, int]] = set()
    pending = [os.fspath(rootfs)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                files += 1
                if stat.S_ISDIR(status.st_mode):
                    pending.append(entry.path)
                elif not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                    bad.append(f"/{os.path.relpath(entry.path, rootfs)} ({_kind(status.st_mode)})")
                if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                    if (status.st_dev, status.st_ino) in linked:
                        continue
                    linked.add((status.st_dev, status.st_ino))
                size += status.st_blocks * 512
    if bad:
        more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise StepError(
            f"refused: {', '.join(sorted(bad)[:5])}{more}; a template has files, directories and links only"
        )
    return Contents(files=files, size_bytes=size)


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFCHR: "character device",
        stat.S_IFBLK: "block device",
        stat.S_IFIFO: "pipe",
        stat.S_IFSOCK: "socket",
    }
    return kinds.get(stat.S_IFMT(mode), "unknown kind")
