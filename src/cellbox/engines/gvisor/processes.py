"""Host processes that can't be mistaken for others: every one is held by a pidfd, never by its number alone.

A process number may belong to a stranger by the time it is used. A pidfd stays with the process it was opened for, so
the order is always: open, look at what it is, then signal or reap through the descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """What `/proc/PID/stat` tells; also of a zombie, which keeps its session until it is reaped."""

    pid: int
    command: str
    state: str
    parent: int
    group: int
    session: int

    @property
    def is_zombie(self) -> bool:
        return self.state == "Z"


def read_stat(pid: int) -> Stat | None:
    """The state of a process, `None` if there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name may hold spaces and brackets; the last bracket ends it.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(
        pid=pid,
        command=head.partition("(")[2],
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a process uses."""

    resident_bytes: int
    cpu_seconds: float


def read_use(pid: int) -> Use | None:
    """Memory and processor time of one process, `None` if there is no such process."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])  # utime and stime; pages come at 21
    return Use(
        resident_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"), cpu_seconds=ticks / os.sysconf("SC_CLK_TCK")
    )


def read_arguments(pid: int) -> tuple[str, ...]:
    """The command line; empty for a zombie, a kernel thread, a process without memory, or nothing at all."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(os.fsdecode(part) for part in raw.split(b"\0") if part)


def all_pids() -> Iterator[int]:
    """Every process of this pid namespace."""
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def children(pid: int) -> list[int]:
    """The direct children of all threads of a process."""
    found: list[int] = []
    try:
        for path in (_PROC / str(pid) / "task").iterdir():
            found += [int(word) for word in (path / "children").read_text().split()]
    except FileNotFoundError:
        if not (_PROC / "thread-self" / "children").exists():  # a kernel without CONFIG_PROC_CHILDREN
            return [other for other in all_pids() if (stat := read_stat(other)) and stat.parent == pid]
    except OSError:
        pass
    return found


class Process:
    """A process held by a descriptor. `close` gives the descriptor back."""

    __slots__ = ("_fd", "pid")
    _held: ClassVar[Counter[int]] = Counter()

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd = fd
        self._held[pid] += 1

    @classmethod
    def is_held(cls, pid: int) -> bool:
        """Does someone in this program hold the process, and so wait for its exit status?"""
        return cls._held[pid] > 0

    @classmethod
    def open(cls, pid: int) -> Process | None:
        """Hold whatever has this number now; check what it is afterwards. `None` if nothing has it."""
        try:
            return cls(pid, os.pidfd_open(pid))
        except ProcessLookupError:
            return None

    @classmethod
    def open_if(cls, pid: int, accept: Callable[[int], bool]) -> Process | None:
        """Hold the process if `accept` says it is the right one, asked while the descriptor pins it."""
        process = cls.open(pid)
        if process is None:
            return None
        if accept(pid):
            return process
        process.close()
        return None

    def is_running(self) -> bool:
        """False once it has ended, reaped or not."""
        if self._fd < 0:
            return False
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return not poll.poll(0)

    def kill(self) -> None:
        """Send SIGKILL. Nothing happens if it is gone."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def reap(self) -> int | None:
        """Collect the exit status if it is our child and has ended.

        Returns the status as in `subprocess` (negative: the signal), `None` while it runs or if it is no child.
        """
        if self._fd < 0:
            return None
        try:
            result = os.waitid(os.P_PIDFD, self._fd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return None
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    def watch(self, ended: Callable[[], None]) -> None:
        """Call `ended` once in the running loop when the process has ended; no polling."""
        loop = asyncio.get_running_loop()

        def on_readable() -> None:
            loop.remove_reader(self._fd)
            ended()

        loop.add_reader(self._fd, on_readable)

    async def wait(self) -> None:
        """Wait for the end. Cancelling leaves the process alone."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        self.watch(lambda: None if ended.done() else ended.set_result(None))
        try:
            await ended
        finally:
            loop.remove_reader(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(RuntimeError):  # no loop runs: nothing is watched
                asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._held[self.pid] -= 1
            if not self._held[self.pid]:
                del self._held[self.pid]


def reap_orphans(sessions: Collection[int]) -> int:
    """Reap ended children of ours that belong to one of the sessions; returns how many children are still alive.

    As a subreaper the daemon inherits what a dead sentry leaves: its system-call stubs. They are told from the daemon's
    own subprocesses by their session, whose number can't be given to anyone else while a member is unreaped.
    """
    alive = 0
    for pid in children(os.getpid()):
        stat = read_stat(pid)
        if stat is None or stat.session not in sessions:
            continue
        orphan = Process.open_if(pid, lambda pid: (again := read_stat(pid)) is not None and again.session in sessions)
        if orphan is None:
            continue
        if not stat.is_zombie or (orphan.reap() is None and read_stat(pid) is not None):
            alive += 1
        orphan.close()
    return alive


def reap_strays() -> None:
    """Reap what starts that broke off left: ended children of ours that re-executed themselves and that nobody holds.

    runsc's processes run `/proc/self/exe` and are therefore named `exe`; no program the daemon starts itself is.
    """
    for pid in children(os.getpid()):
        stat = read_stat(pid)
        if stat is None or not stat.is_zombie or stat.command != "exe" or Process.is_held(pid):
            continue
        if (stray := Process.open(pid)) is not None:
            stray.reap()
            stray.close()
