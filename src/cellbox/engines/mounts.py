"""Mounts on this host, made in a mount namespace of the daemon's own, so that none outlives it and its machines."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC = 1, 2, 4, 32, 4096, 16384
_MS_SLAVE, _MS_SHARED = 1 << 19, 1 << 20
_MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def enter_namespace() -> None:
    """Give this process mounts of its own: it sees what the host mounts later, the host nothing of what it mounts.

    Call it before the process has a second thread, which would stay behind. Raises `OSError`.
    """
    if _libc.unshare(_CLONE_NEWNS):
        _fail("unshare")
    _mount("none", Path("/"), _MS_REC | _MS_SLAVE)


def bind(source: Path, target: Path, *, read_only: bool) -> None:
    """Show a directory in another place, without set-user-ID bits and devices. Raises `OSError`."""
    _mount(str(source), target, _MS_BIND)
    try:
        read_only_flag = _MS_RDONLY if read_only else 0
        _mount("none", target, _MS_BIND | _MS_REMOUNT | _MS_NOSUID | _MS_NODEV | read_only_flag)
    except OSError:
        unmount(target)
        raise


def clone(source: Path, target: Path) -> None:
    """Show what is mounted at `source` at `target` too, with its flags. Raises `OSError`."""
    _mount(str(source), target, _MS_BIND)


def share(place: Path) -> None:
    """Let namespaces that copy the mount at `place` from now on see what is mounted below it later."""
    _mount("none", place, _MS_SHARED)


def unmount(place: Path) -> None:
    """Take away what is mounted there; who has a file of it open keeps that. Raises `OSError`."""
    if _libc.umount2(os.fsencode(place), _MNT_DETACH):
        _fail(f"unmounting {place}")


def mounted_below(place: Path) -> list[Path]:
    """Everything mounted at `place` or below it, the latest first."""
    found: list[Path] = []
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        point = Path(line.split(" ")[4].encode("utf-8", "surrogateescape").decode("unicode_escape"))
        if point.is_relative_to(place):
            found.append(point)
    return found[::-1]


def _mount(source: str, target: Path, flags: int) -> None:
    if _libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None):
        _fail(f"mounting {target}")


def _fail(what: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")
