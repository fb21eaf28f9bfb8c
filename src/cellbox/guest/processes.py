"""Starting, reaping, finding and ending processes. The one place that calls `waitpid`; commands and contexts share it.

All process ids here are as PID 1 sees them. The user's processes live in a PID namespace of their own
(`system.Namespace`), so a number that one of them reports about itself or a child is *not* one to use here: look it up
with `children_of`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from cellbox.guest import accounts, system

_RESTORED_SIGNALS = [number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)]
MARKER = "CELLBOX_EXEC_ID"
"""In the environment of everything a command starts: how a process that left its session is told apart."""

CROWD = 32
"""So many processes are looked at only after they were stopped."""

_STOP_ROUNDS = 3
_KILL_ROUNDS = 200
_KILL_PAUSE_SECONDS = 0.002
_DEAD = "ZX"
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    name: str
    resident_bytes: int


class Child:
    """A process that this one started."""

    __slots__ = ("pid", "status")

    def __init__(self, pid: int, status: asyncio.Future[int]) -> None:
        self.pid = pid
        """Also the id of its process group and session."""
        self.status = status
        """Resolves to the exit status as `waitpid` gives it."""


class Processes:
    """The process table of the sandbox."""

    def __init__(self) -> None:
        # Held open, because after the chroot `/proc` is the user's, with the user's numbers.
        self._table = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        self._watched: dict[int, asyncio.Future[int]] = {}
        self._count = 0
        self._own: set[int] = {os.getpid()}
        self._zygotes: set[int] = set()
        self._kernels: set[int] = set()
        self.roots = system.Roots()
        self.namespace_pid = -1
        """First process of the user's PID namespace."""
        self.on_namespace_lost: Callable[[], None] = lambda: None
        """Called when the user killed it, and everything in the namespace with it."""

    def start(self) -> None:
        """Begin to reap. Needs the running loop."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)

    def mark_own(self, pid: int) -> None:
        """Declare a process as part of the guest: never counted, listed or killed as the user's."""
        self._own.add(pid)

    def own(self) -> frozenset[int]:
        """Return the pids of the guest's own processes, this one included."""
        return frozenset(self._own)

    def mark_zygote(self, pid: int) -> None:
        """Declare a process as part of the guest whose children are kernels."""
        self._own.add(pid)
        self._zygotes.add(pid)

    def mark_kernel(self, pid: int) -> None:
        """Declare a process that this one started as a kernel: the user's, but no background process."""
        self._kernels.add(pid)

    def spawn(
        self,
        argv: list[str],
        *,
        env: Mapping[str, str],
        cwd: str = "/",
        files: Iterable[tuple[int, int]] = (),
        account: accounts.Account | None = None,
        in_template: bool = False,
    ) -> Child:
        """Start a program by absolute path in a session of its own, with `files` as (our fd, its fd) and no other.

        `in_template` starts it in the read-only root. Raises `OSError`; `filename` tells whether cwd or program is bad.
        """
        # vfork under posix_spawn: a fork of this process costs 36 ms under gVisor, this one 7. Working directory, root
        # and user are set here for the moment of the call, for nothing else runs in this process meanwhile.
        actions: list[tuple[int, int, int]] = [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in files]
        if in_template:
            self.roots.enter_template()
        try:
            with accounts.acting_as(account):
                os.chdir(cwd)
                pid = os.posix_spawn(
                    argv[0], argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_RESTORED_SIGNALS
                )
        finally:
            if in_template:
                self.roots.leave_template()
            os.chdir("/")
        return Child(pid, self.watch(pid))

    def watch(self, pid: int) -> asyncio.Future[int]:
        """Return the future of a child's exit status. To be called in the same step that started the child."""
        future = self._watched.get(pid)
        if future is None:
            future = self._watched[pid] = asyncio.get_running_loop().create_future()
        return future

    def reap(self) -> None:
        """Collect every child that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for known in (self._own, self._zygotes, self._kernels):
                known.discard(pid)
            if pid == self.namespace_pid:
                self.on_namespace_lost()
            future = self._watched.pop(pid, None)
            if future is not None and not future.done():
                future.set_result(status)

    def snapshot(self) -> dict[int, Process]:
        """Return the user's living processes by pid: all descendants of this process but the guest's own."""
        table: dict[int, Process] = {}
        for name in os.listdir(self._table):
            if name.isdigit():
                process = self._read(name)
                if process is not None:
                    table[process.pid] = process
        ours = {pid: pid == os.getpid() for pid in (os.getpid(), 1, 0)}
        return {
            pid: process
            for pid, process in table.items()
            if pid not in self._own and process.state not in _DEAD and _descends(pid, table, ours)
        }

    def children_of(self, parent: int) -> list[int]:
        """Return the living children of a process, oldest first."""
        return sorted(process.pid for process in self.snapshot().values() if process.parent == parent)

    def count(self) -> int:
        """Return how many processes there are at all. Cheap: no file is read."""
        self._count = sum(name.isdigit() for name in os.listdir(self._table))
        return self._count

    def members(self, leader: int, marker: bytes, table: Mapping[int, Process]) -> set[int]:
        """Return the pids in `table` that came from `leader`: by session, group or descent, or by `marker` in their
        environment, which survives `setsid` and a double fork."""
        found = {pid for pid, process in table.items() if leader in (pid, process.session, process.group)}
        for pid in table:
            if pid not in found and marker and marker in self._environment(pid):
                found.add(pid)
        size = -1
        while size != len(found):
            size = len(found)
            found |= {pid for pid, process in table.items() if process.parent in found}
        return found

    async def kill_members(self, leader: int, marker: bytes, known: Collection[int] = ()) -> None:
        """Kill what came from `leader`, however it forks meanwhile, and return when nothing of it is left.

        `known` are pids that came from it, found while the parents that tell so were alive.
        """
        self.calm(leader)
        table = self.snapshot()
        found = self.members(leader, marker, table) | table.keys() & set(known)
        seen = found | {leader}
        for _ in range(_KILL_ROUNDS):
            send(leader, signal.SIGKILL, group=True)
            for pid in found:
                send(pid, signal.SIGKILL)
            await asyncio.sleep(_KILL_PAUSE_SECONDS)
            self.reap()
            table = self.snapshot()
            found = self.members(leader, marker, table)
            # Whoever was forked between two looks lost its parent, but not the session or group it was born in.
            found |= {
                pid for pid, process in table.items() if not seen.isdisjoint((pid, process.session, process.group))
            }
            if not found:
                return
            seen |= found

    @property
    def is_crowd(self) -> bool:
        """True when there were so many processes, last time they were counted, that they are better stopped first."""
        return self._count > CROWD

    def calm(self, leader: int) -> bool:
        """Stop the group of `leader` if there is a crowd; returns whether it did."""
        return self.is_crowd and send(leader, signal.SIGSTOP, group=True)

    @contextmanager
    def standstill(self) -> Generator[bool]:
        """Stop every process but this one if there is a crowd; yields whether it did.

        To be used only while they keep us from running: a process group whose last tie to its session ends while it
        stands still is sent SIGHUP by the kernel.

        Hundreds of processes that want the processor make each call of ours wait for a second, and a look at them all
        takes hundreds of calls. Stopping them takes one.
        """
        is_still = self.is_crowd and self.namespace_pid > 0  # without the namespace, "every process" is the host's
        if is_still:
            for _ in range(_STOP_ROUNDS):  # what is being forked while the signal goes round does not get it
                send(-1, signal.SIGSTOP)
        try:
            yield is_still
        finally:
            for _ in range(_STOP_ROUNDS if is_still else 0):
                send(-1, signal.SIGCONT)

    def is_alive(self, pid: int) -> bool:
        """Tell whether a process still runs, or will again when it is continued."""
        process = self._read(str(pid))
        return process is not None and process.state not in _DEAD

    def file(self, path: str) -> bytes:
        """Return a small file of the process table, such as `meminfo`; empty when it is gone."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._table)
        except OSError:
            return b""
        try:
            return os.read(handle, 65536)
        except OSError:
            return b""
        finally:
            os.close(handle)

    def directory_of(self, pid: int) -> str:
        """Return the working directory of a process, as this one would name it; empty when there is none to name."""
        try:
            path = os.readlink(f"{pid}/cwd", dir_fd=self._table)
        except OSError:
            return ""
        return path.removesuffix(" (deleted)") if path.startswith("/") else ""

    def is_kernel(self, process: Process) -> bool:
        """Tell whether a process is a kernel: declared as one, or forked by the zygote."""
        return process.pid in self._kernels or (process.parent in self._own and process.parent in self._zygotes)

    def background(self, excluded: Collection[int]) -> list[Process]:
        """Return the user's processes that are neither kernels nor `excluded`."""
        return [
            process
            for process in self.snapshot().values()
            if process.pid not in excluded and not self.is_kernel(process)
        ]

    def marker_of(self, pid: int) -> bytes:
        """Return the `NAME=value` that marks the command a process came from; empty when it has none."""
        prefix = f"{MARKER}=".encode()
        variables = self._environment(pid).split(b"\0")
        return next((variable for variable in variables if variable.startswith(prefix)), b"")

    def _environment(self, pid: int) -> bytes:
        return self.file(f"{pid}/environ")

    def _read(self, name: str) -> Process | None:
        # The name is in parentheses and may itself hold parentheses and spaces; the last one closes it.
        head, _, rest = self.file(f"{name}/stat").rpartition(b")")
        fields = rest.split()
        if len(fields) < 22:
            return None
        return Process(
            pid=int(name),
            parent=int(fields[1]),
            group=int(fields[2]),
            session=int(fields[3]),
            state=fields[0].decode(),
            name=head.partition(b"(")[2].decode(errors="replace"),
            resident_bytes=int(fields[21]) * _PAGE,
        )


def send(pid: int, number: int, *, group: bool = False) -> bool:
    """Send a signal; False when there is nobody to take it."""
    try:
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def group_is_alive(leader: int) -> bool:
    """Tell whether a process group still has a member."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def exit_code(status: int) -> tuple[int, int]:
    """Return a wait status as (exit code as a shell reports it, signal)."""
    code = os.waitstatus_to_exitcode(status)
    return (128 - code, -code) if code < 0 else (code, 0)


def _descends(pid: int, table: Mapping[int, Process], known: dict[int, bool]) -> bool:
    path: list[int] = []
    while pid not in known:
        path.append(pid)
        process = table.get(pid)
        pid = process.parent if process is not None and process.parent not in path else 0
    answer = known[pid]
    known.update(dict.fromkeys(path, answer))
    return answer
