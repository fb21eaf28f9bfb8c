"""Commands: one shell text, run to its end in a session of its own, its output sent as it comes.

A command is over when its shell has ended. Children that it left behind live on after a normal end; after a timeout, a
cancellation or a lack of memory nothing of it survives, not even what called `setsid`.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from cellbox.guest import accounts, pipes, processes, system
from cellbox.guest.channel import Handler, Refusal, Stream
from cellbox.wire.frames import DataChannel
from cellbox.wire.messages import Exec, Exited, Request

Reason = Literal["exited", "timeout", "idle_timeout", "cancelled", "out_of_memory"]

_GRACE_SECONDS = 0.2
"""Between SIGTERM and SIGKILL."""
_POLL_SECONDS = 0.01
_MAX_ARGUMENT_BYTES = 100 * 1024
"""A single argument may have 128 KiB (MAX_ARG_STRLEN). Longer commands are read from a file."""
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh")
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SCRIPT = 10
"""The command's own descriptor of its text, when that is too long for an argument."""


def find_shell() -> str:
    """Return the path of the shell that commands run in; empty when the template has none."""
    return next((path for path in _SHELLS if os.access(path, os.X_OK)), "")


def environment(base: Mapping[str, str], account: accounts.Account, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a command or kernel: the template's, who it runs as, and what was asked for."""
    return {
        "PATH": _DEFAULT_PATH,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        **base,
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        **extra,
    }


class Commands:
    """Runs commands and knows those in progress."""

    def __init__(self, table: processes.Processes) -> None:
        self._processes = table
        self._running: dict[int, _Command] = {}
        self._base: Mapping[str, str] = {}
        self._shell = ""
        self._null = -1
        self.on_start: Callable[[], None] = lambda: None
        """Called when a command starts: the memory watcher has work again."""

    def handlers(self) -> dict[type[Request], Handler]:
        return {Exec: self.run}

    def configure(self, base: Mapping[str, str]) -> str:
        """Take the environment that all commands start from. Returns the shell. Runs in the user's root."""
        self._base = dict(base)
        self._shell = find_shell()
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)  # root may well replace or remove it
        return self._shell

    def extend_environment(self, variables: Mapping[str, str]) -> None:
        """Add to the environment that all commands start from."""
        self._base = {**self._base, **variables}

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def shell(self) -> str:
        """The path of the shell that commands run in; empty when there is none."""
        return self._shell

    def environment_for(self, account: accounts.Account, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of what `account` starts. Raises `Refusal` for what can be no variable."""
        env = environment(self._base, account, extra)
        for name, value in env.items():
            if not name or "=" in name or "\0" in name or "\0" in value:
                raise Refusal("invalid_request", f"no possible environment variable: {name[:100]!r}")
        return env

    def members(self, table: Mapping[int, processes.Process]) -> set[int]:
        """Return the pids in `table` that belong to commands in progress, without the cost of reading environments."""
        found: set[int] = set()
        for pid in self._running:
            found |= self._processes.members(pid, b"", table)
        return found

    def note_out_of_memory(self, pid: int, table: Mapping[int, processes.Process]) -> bool:
        """End the command in progress that `pid` belongs to. False when there is none."""
        for leader, command in self._running.items():
            if pid in self._processes.members(leader, command.marker, table):
                command.end("out_of_memory")
                return True
        return False

    async def run(self, stream: Stream, request: Exec) -> Exited:
        """Answer an `Exec`."""
        started = time.monotonic()
        account = find_account(request.user)
        token = secrets.token_hex(8)
        env = self.environment_for(account, {**request.env, processes.MARKER: token})
        command = self._spawn(request, account, env, token)
        self._running[command.child.pid] = command
        self.on_start()
        try:
            return await command.follow(stream, request, started)
        finally:
            self._running.pop(command.child.pid, None)

    def start(self, text: str) -> tuple[processes.Child, int, int]:
        """Start shell text in the background. Returns it with the reading ends of its output, non-blocking."""
        env = environment(self._base, accounts.ROOT, {})
        command = self._spawn(Exec(command=text), accounts.ROOT, env, "")
        return command.child, *command.ends[1:]

    def _spawn(self, request: Exec, account: accounts.Account, env: dict[str, str], token: str) -> _Command:
        if not self._shell:
            raise Refusal("invalid_request", "this sandbox has no shell to run commands with")
        cwd = find_directory(request.cwd, account)
        text = os.fsencode(request.command)
        if b"\0" in text:
            raise Refusal("invalid_request", "a command can't contain a NUL character")
        ours: list[int] = []
        theirs: list[int] = []
        try:
            if request.has_stdin:
                stdin, feed = os.pipe()
                os.set_blocking(feed, False)
                ours.append(feed)
            else:
                stdin, feed = os.dup(self._null), -1
            theirs.append(stdin)
            for _ in range(2):
                reading, writing = os.pipe()
                os.set_blocking(reading, False)
                ours.append(reading)
                theirs.append(writing)
            files: list[tuple[int, int]] = list(zip(theirs, (0, 1, 2), strict=True))
            if len(text) > _MAX_ARGUMENT_BYTES:
                script = _script(text)
                theirs.append(script)
                files.append((script, _SCRIPT))
                arguments = [f"/dev/fd/{_SCRIPT}"]
            else:
                arguments = ["-c", request.command]
            argv = [self._shell, *arguments]
            child = self._processes.spawn(argv, env=env, cwd=cwd, files=files, account=account)
        except (OSError, ValueError) as error:
            for descriptor in ours:
                os.close(descriptor)
            raise Refusal("invalid_request", f"the command can't be started: {error}") from error
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        ends = _Pipes(feed, *ours[-2:])
        return _Command(self._processes, child, ends, f"{processes.MARKER}={token}".encode() if token else b"")


class _Pipes(NamedTuple):
    """Our ends of a command's standard streams. `stdin` is -1 when it has none."""

    stdin: int
    stdout: int
    stderr: int


class _Command:
    """One command in progress."""

    def __init__(self, table: processes.Processes, child: processes.Child, ends: _Pipes, marker: bytes) -> None:
        self.child = child
        self.ends = ends
        self.marker = marker
        self._processes = table
        self._reason: Reason = "exited"
        self._ending: asyncio.Task[None] | None = None

    def end(self, reason: Reason) -> None:
        """End it early. The first reason counts; an out-of-memory command gets no time to clean up."""
        if self._ending is None and not self.child.status.done():
            self._reason = reason
            grace = 0.0 if reason == "out_of_memory" else _GRACE_SECONDS
            self._ending = asyncio.get_running_loop().create_task(self._end(grace))

    async def follow(self, stream: Stream, request: Exec, started: float) -> Exited:
        """Carry its output and input until it has ended. `started` is by the monotonic clock."""
        loop = asyncio.get_running_loop()
        stream.on_cancel(lambda: self.end("cancelled"))
        timeout = request.timeout_seconds
        timer = None if timeout is None else loop.call_later(max(timeout, 0), self.end, "timeout")
        idle = pipes.Idle(request.idle_timeout_seconds, lambda: self.end("idle_timeout"))
        outputs = [
            pipes.Output(self.ends.stdout, DataChannel.STDOUT, stream, idle),
            pipes.Output(self.ends.stderr, DataChannel.STDERR, stream, idle),
        ]
        tasks = [loop.create_task(output.carry()) for output in outputs]
        feeding = pipes.start_feeding(stream, self.ends.stdin) if request.has_stdin else None
        try:
            status = await self.child.status
            idle.stop()
            duration = time.monotonic() - started
            for output in outputs:
                output.finish()
            await asyncio.gather(*tasks)
            if self._ending is not None:
                await self._ending
        finally:
            if timer is not None:
                timer.cancel()
            idle.stop()
            if feeding is not None:
                feeding.cancel()
            for output in outputs:
                os.close(output.descriptor)
        code, number = processes.exit_code(status)
        return Exited(
            exit_code=code,
            signal=number,
            duration_ms=round(duration * 1000, 3),
            reason=self._reason,
            survivors=self._survivors(),
        )

    async def _end(self, grace: float) -> None:
        leader = self.child.pid
        known: set[int] = set()
        if grace:
            is_stopped = self._processes.calm(leader)
            known = self._processes.members(leader, self.marker, self._processes.snapshot())
            processes.send(leader, signal.SIGTERM, group=True)
            if is_stopped:
                processes.send(leader, signal.SIGCONT, group=True)
            for _ in range(round(grace / _POLL_SECONDS)):
                if not processes.group_is_alive(leader):
                    break
                await asyncio.sleep(_POLL_SECONDS)
        await self._processes.kill_members(leader, self.marker, known)

    def _survivors(self) -> int:
        leader = self.child.pid
        if not processes.group_is_alive(leader):
            return 0
        return sum(process.group == leader for process in self._processes.snapshot().values())


def _script(text: bytes) -> int:
    """Return a descriptor of a file in memory that holds the command, at its beginning."""
    file = os.memfd_create("command", os.MFD_CLOEXEC)
    # Clear of `_SCRIPT`: a dup2 of a descriptor onto itself would leave it to be closed at exec.
    script = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _SCRIPT + 1)
    os.close(file)
    rest = memoryview(text)
    while rest:
        rest = rest[os.write(script, rest) :]
    os.lseek(script, 0, os.SEEK_SET)
    return script


def find_account(user: str) -> accounts.Account:
    """Return who a command runs as; empty stands for root. Raises `Refusal`."""
    try:
        return accounts.find(user) if user else accounts.find("root")
    except LookupError as error:
        raise Refusal("invalid_request", error.args[0]) from None


def find_directory(cwd: str, account: accounts.Account) -> str:
    """Return where a command runs; empty stands for the sandbox's own directory. Raises `Refusal`."""
    path = cwd or system.DEFAULT_DIRECTORY
    if not path.startswith("/") or "\0" in path:
        raise Refusal("invalid_request", f"the working directory must be an absolute path: {path!r}")
    try:
        with accounts.acting_as(account):
            os.chdir(path)
        os.chdir("/")
    except OSError as error:
        if not cwd:
            return "/"
        raise Refusal("invalid_request", f"no such working directory: {path}: {error.strerror}") from None
    return path
