"""Shells: each a bash that lives on between commands, with its directory, variables, functions and background jobs.

Commands of one shell run one after another in the order of arrival. Output and errors come as one stream, in the order
in which they were written. What background jobs print between two commands comes with the next one (the last 64 KiB,
the rest is counted).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Literal

from cellbox.guest import accounts, processes
from cellbox.guest.channel import Handler, Refusal, Stream
from cellbox.guest.commands import Commands, find_account, find_directory
from cellbox.guest.shell_process import ShellProcess
from cellbox.wire.messages import (
    CloseShell,
    Done,
    Interrupted,
    InterruptShell,
    LateOutput,
    ListShells,
    OpenShell,
    Request,
    RunInShell,
    ShellDone,
    ShellInfo,
    ShellList,
)

MAX_SHELLS = 32
"""Per sandbox. Each is a process of 4 MB."""
_GRACE_SECONDS = 0.5
"""For what was interrupted to end by itself, and then for the shell to write its state down."""
_LEAVE_SECONDS = 2.0

Reason = Literal["exited", "timeout", "idle_timeout", "cancelled", "interrupted", "out_of_memory", "died"]


class Shells:
    """All shells of the sandbox."""

    def __init__(self, table: processes.Processes, commands: Commands) -> None:
        self._processes = table
        self._commands = commands
        self._shells: dict[str, _Shell] = {}
        self.on_start: Callable[[], None] = lambda: None
        """Called when a command starts: the memory watcher has work again."""

    def handlers(self) -> dict[type[Request], Handler]:
        return {
            OpenShell: self._open,
            RunInShell: self._run,
            InterruptShell: self._interrupt,
            CloseShell: self._close,
            ListShells: self._list,
        }

    @property
    def running(self) -> int:
        """How many commands are in progress."""
        return sum(shell.is_running for shell in self._shells.values())

    def pids(self) -> set[int]:
        """The shells themselves: what waits for a command is no background work."""
        return {shell.process.pid for shell in self._shells.values() if shell.process is not None}

    def members(self, table: Mapping[int, processes.Process]) -> set[int]:
        """Return the pids in `table` of the shells, and of what belongs to their commands in progress."""
        found = self.pids()
        for shell in self._shells.values():
            if shell.is_running:
                found |= shell.members(table)
        return found

    def note_out_of_memory(self, pid: int, table: Mapping[int, processes.Process]) -> bool:
        """End the command in progress that `pid` belongs to. False when there is none."""
        for shell in self._shells.values():
            if shell.is_running and pid in shell.members(table):
                shell.end("out_of_memory")
                return True
        return False

    async def _open(self, _stream: Stream, request: OpenShell) -> ShellInfo:
        if request.shell_id in self._shells:
            return self._shells[request.shell_id].info()
        if len(self._shells) >= MAX_SHELLS:
            raise Refusal("shell_limit", f"a sandbox has at most {MAX_SHELLS} shells; close one first")
        account = find_account(request.user)
        shell = _Shell(request, account, self._processes, self._commands)
        self._shells[request.shell_id] = shell
        try:
            await shell.ensure_process()
        except BaseException:
            del self._shells[request.shell_id]
            raise
        return shell.info()

    async def _run(self, stream: Stream, request: RunInShell) -> ShellDone:
        shell = self._find(request.shell_id)
        self.on_start()
        return await shell.run(stream, request)

    async def _interrupt(self, _stream: Stream, request: InterruptShell) -> Interrupted:
        shell = self._find(request.shell_id)
        was_busy = shell.is_running
        shell.end("interrupted")
        return Interrupted(was_busy=was_busy)

    async def _close(self, _stream: Stream, request: CloseShell) -> Done:
        shell = self._find(request.shell_id)
        del self._shells[request.shell_id]
        await shell.close()
        return Done()

    async def _list(self, _stream: Stream, _request: ListShells) -> ShellList:
        return ShellList(shells=[shell.info() for shell in self._shells.values()])

    def _find(self, shell_id: str) -> _Shell:
        shell = self._shells.get(shell_id)
        if shell is None:
            raise Refusal("shell_not_found", f"no shell {shell_id!r}")
        return shell


class _Shell:
    """One shell. Its process is None while none was needed since the last one ended."""

    def __init__(
        self, request: OpenShell, account: accounts.Account, table: processes.Processes, commands: Commands
    ) -> None:
        self.id = request.shell_id
        self.process: ShellProcess | None = None
        self._env = request.env
        self._account = account
        self._processes = table
        self._commands = commands
        self._directory = find_directory(request.cwd, account)
        self._state = b""
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._is_running = False
        self._is_closed = False
        self._reason: Reason = "exited"
        self._ending: asyncio.Task[None] | None = None
        self._count = 0
        self._older: set[int] = set()
        """Background jobs of earlier commands: a time limit of this one is none of theirs."""

    @property
    def is_running(self) -> bool:
        return self._is_running

    def info(self) -> ShellInfo:
        return ShellInfo(shell_id=self.id, cwd=self._directory, is_busy=self._is_running or self._waiting > 0)

    async def ensure_process(self) -> ShellProcess:
        """Return the shell's process, started anew with the state of the last one if that has ended."""
        if self.process is None or self.process.has_ended:
            if self.process is not None:
                self._collect(self.process)
            shell, env = self._commands.shell, self._commands.environment_for(self._account, self._env)
            process = ShellProcess(self._processes, shell, env, self._directory, self._account, self._state)
            self.process, self._state = process, b""
            await process.ready()
        return self.process

    async def run(self, stream: Stream, request: RunInShell) -> ShellDone:
        """Answer a `RunInShell` when it is this command's turn."""
        text = os.fsencode(request.command)
        if b"\0" in text:
            raise Refusal("invalid_request", "a command can't contain a NUL character")
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            if self._is_closed:
                raise Refusal("shell_not_found", f"shell {self.id!r} was closed")
            if stream.cancelled.is_set():
                raise ConnectionAbortedError("the host gave the command up while it was waiting")
            process = await self.ensure_process()
            self._is_running, self._reason, self._ending = True, "exited", None
            try:
                return await self._follow(stream, request, process, text)
            finally:
                self._is_running = False
        finally:
            self._turn.release()

    def members(self, table: Mapping[int, processes.Process]) -> set[int]:
        """Return the pids in `table` that the command in progress started, without the shell itself."""
        assert self.process is not None
        found = self._processes.members(-1, self.process.marker.encode(), table)
        for pid in _descendants(self.process.pid, table):
            if pid not in self._older and not self._processes.marker_of(pid):
                found.add(pid)
        found |= {pid for parent in found for pid in _descendants(parent, table)}
        return found - {self.process.pid} - self._older

    def end(self, reason: Reason) -> None:
        """End the command in progress early. The first reason counts."""
        if self._is_running and self._ending is None:
            self._reason = reason
            self._ending = asyncio.get_running_loop().create_task(self._end(reason))

    async def close(self) -> None:
        """End the shell and all that its commands left."""
        self._is_closed = True
        self.end("cancelled")
        async with self._turn:
            if self.process is not None:
                await self.process.kill_all()
                self.process.close()
                self.process = None

    async def _follow(self, stream: Stream, request: RunInShell, process: ShellProcess, text: bytes) -> ShellDone:
        loop = asyncio.get_running_loop()
        late, dropped = process.take_late()
        if late or dropped:
            await stream.emit(LateOutput(stdout=len(late)))
            await stream.send(late)
        started = time.monotonic()
        stream.on_cancel(lambda: self.end("cancelled"))
        timer = None
        if request.timeout_seconds is not None:
            timer = loop.call_later(max(request.timeout_seconds, 0), self.end, "timeout")
        try:
            code = await process.run(
                text,
                stream,
                terminal=request.terminal,
                idle_seconds=request.idle_timeout_seconds,
                on_idle=lambda: self.end("idle_timeout"),
            )
        finally:
            if timer is not None:
                timer.cancel()
        duration = time.monotonic() - started
        if self._ending is not None:
            await self._ending
            await process.settle()
        state_kept = True
        if process.has_ended:
            state_kept = self._collect(process)
            if not state_kept and self._reason == "exited":
                self._reason = "died"
            await self.ensure_process()
        else:
            self._directory = process.directory() or self._directory
        self._remember_jobs()
        return ShellDone(
            exit_code=code,
            cwd=self._directory,
            duration_ms=round(duration * 1000, 3),
            reason=self._reason,
            state_kept=state_kept,
            late_dropped_bytes=dropped,
        )

    def _collect(self, process: ShellProcess) -> bool:
        """Take over what a shell that has ended wrote down; False if it did not."""
        state = process.saved_state()
        self._state = state or b""
        if state is not None:
            self._directory = process.last_directory or self._directory
        process.close()
        self.process = None
        return state is not None

    def _remember_jobs(self) -> None:
        """Note which processes live on, so that a later command's time limit spares them."""
        count = self._processes.count()
        if count == self._count or self.process is None:
            return
        self._count = count
        table = self._processes.snapshot()
        self._older &= table.keys()
        self._older |= _descendants(self.process.pid, table)
        self._older |= self._processes.members(-1, self.process.family.encode(), table)
        self._older.discard(self.process.pid)

    async def _end(self, reason: Reason) -> None:
        process = self.process
        assert process is not None
        members = self.members(self._processes.snapshot())
        process.interrupt()  # before the others: what it waits for must not let it go on
        if reason != "out_of_memory":
            for pid in members:
                processes.send(pid, signal.SIGINT)
        if reason == "out_of_memory" or not await process.is_through(_GRACE_SECONDS):
            await self._kill_members()
            if not await process.is_through(_LEAVE_SECONDS):
                process.kill()
        await self._kill_members()

    async def _kill_members(self) -> None:
        if self.process is None:
            return
        end = time.monotonic() + _LEAVE_SECONDS
        while (found := self.members(self._processes.snapshot())) and time.monotonic() < end:
            for pid in found:
                processes.send(pid, signal.SIGKILL)
            await asyncio.sleep(0.002)
            self._processes.reap()


def _descendants(parent: int, table: Mapping[int, processes.Process]) -> set[int]:
    found: set[int] = set()
    layer = {parent}
    while layer:
        layer = {pid for pid, process in table.items() if process.parent in layer} - found
        found |= layer
    return found
