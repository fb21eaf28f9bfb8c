"""Users of the sandbox, read from its own `/etc/passwd` and `/etc/group`.

Not through the `pwd` module: libc would load name service plug-ins from the user's files into PID 1.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

_MAX_BYTES = 4 * 1024 * 1024


class Account(NamedTuple):
    """Who a process runs as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


ROOT = Account("root", 0, 0, (0,), "/root")


def find(user: str) -> Account:
    """Return the account with this name or numeric id. Raises `LookupError`.

    A number without an entry is a user too: gid 0 and home `/`, as container runtimes have it.
    """
    for fields in _lines("/etc/passwd", 7):
        if fields[0] == user or fields[2] == user:
            return Account(fields[0], int(fields[2]), int(fields[3]), _groups(fields[0], int(fields[3])), fields[5])
    if user in ("root", "0"):
        return ROOT
    if user.isdigit() and int(user) < 2**32 - 1:
        return Account(user, int(user), 0, (0,), "/")
    raise LookupError(f"unknown user {user!r}")


@contextmanager
def acting_as(account: Account | None) -> Generator[None]:
    """Give this process the ids that a child started inside is to have.

    The saved ids stay root's, which is what leads back; an exec overwrites them in the child.
    """
    if account is None or (account.uid == 0 and account.gid == 0):
        yield
        return
    try:
        os.setgroups(account.groups)
        os.setresgid(account.gid, account.gid, 0)
        os.setresuid(account.uid, account.uid, 0)
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups([0])


def _groups(name: str, primary: int) -> tuple[int, ...]:
    others = [int(fields[2]) for fields in _lines("/etc/group", 4) if name in fields[3].split(",")]
    return tuple(dict.fromkeys([primary, *others]))


def _lines(path: str, count: int) -> Iterator[list[str]]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO in its place must not hang us
    except OSError:
        return
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return
        text = os.read(handle, _MAX_BYTES).decode(errors="surrogateescape")
    except OSError:
        return
    finally:
        os.close(handle)
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) == count and fields[2].isdigit():
            yield fields
