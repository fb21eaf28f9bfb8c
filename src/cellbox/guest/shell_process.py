"""The process of a shell and the descriptors it is driven by."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import struct
import termios
from collections.abc import Callable, Mapping

from cellbox.guest import accounts, pipes, processes, shell_text
from cellbox.guest.channel import Refusal, Stream
from cellbox.wire.frames import DataChannel

_ROWS, _COLUMNS = 40, 120
_LATE_BYTES = 64 * 1024
_MAX_STATE_BYTES = 32 * 1024 * 1024
_START_SECONDS = 30.0
_PAUSE_SECONDS = 0.005
_OURS = 300
"""Our ends are moved above the shell's: a dup2 onto a number that is still to be copied would lose it."""


class ShellProcess:
    """A shell that waits for commands. It is started by the constructor, in a session of its own."""

    def __init__(
        self,
        table: processes.Processes,
        shell: str,
        env: Mapping[str, str],
        directory: str,
        account: accounts.Account,
        state: bytes,
    ) -> None:
        if not shell:
            raise Refusal("invalid_request", "this sandbox has no shell")
        self._processes = table
        self._is_bash = shell.endswith("/bash")
        self.family = f"{processes.MARKER}={secrets.token_hex(8)}-"
        """Begins the marker of each of its commands."""
        self._commands = 0
        self.last_directory = ""
        self._code: asyncio.Future[int] | None = None
        self._late = bytearray()
        self._late_dropped = 0
        self._ours: list[int] = []
        self._child = self._spawn(shell, dict(env), directory, account, state)
        self.pid = self._child.pid
        loop = asyncio.get_running_loop()
        loop.add_reader(self._status, self._on_status)
        self._child.status.add_done_callback(self._on_exit)
        self._watch_late()

    @property
    def marker(self) -> str:
        """`NAME=value` in the environment of what the command in progress starts."""
        return f"{self.family}{self._commands}"

    @property
    def has_ended(self) -> bool:
        return self._child.status.done()

    async def ready(self) -> None:
        """Wait until it has taken over the state it was given. Raises `Refusal` if it never does."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._expect(shell_text.START if self._is_bash else b"echo ready >&8\n")
        except TimeoutError:
            self.kill()
            raise Refusal("internal", "the sandbox's shell does not start") from None
        os.ftruncate(self._state, 0)
        os.lseek(self._state, 0, os.SEEK_SET)

    async def run(
        self,
        text: bytes,
        stream: Stream,
        *,
        terminal: bool,
        idle_seconds: float | None,
        on_idle: Callable[[], None],
    ) -> int:
        """Run a command and send what it prints. Returns its exit code, or the shell's if that has ended by it."""
        self._commands += 1
        os.ftruncate(self._text, 0)
        _write_all(self._text, text)
        loop = asyncio.get_running_loop()
        idle = pipes.Idle(idle_seconds, on_idle)
        self._unwatch_late()
        output = pipes.Output(self._output, DataChannel.MAIN, stream, idle)
        tasks = [loop.create_task(output.carry())]
        token = secrets.token_hex(16).encode() if terminal else b""
        if terminal:
            tasks.append(loop.create_task(self._carry_terminal(stream, idle, token)))
        line = shell_text.run_line if self._is_bash else shell_text.run_line_plain
        try:
            code = await self._expect(line(self.marker, terminal=terminal))
            output.finish()
            if terminal:
                await self._write_terminal(token)
            await asyncio.gather(*tasks)
        finally:
            idle.stop()
            for task in tasks:
                task.cancel()
            self._watch_late()
        return code

    async def _carry_terminal(self, stream: Stream, idle: pipes.Idle, token: bytes) -> None:
        """Carry what the terminal shows until `token` comes: unlike a pipe it does not tell what is on the way."""
        held = b""
        while token not in held:
            data = await pipes.read_when_ready(self._master)
            if not data:
                break
            idle.touch()
            held += data
            ready = held.find(token)
            if ready < 0:
                ready = max(len(held) - len(token) + 1, 0)
            await stream.send(held[:ready])
            held = held[ready:]
        self._late += held.removeprefix(token)

    async def _write_terminal(self, token: bytes) -> None:
        while True:
            try:
                os.write(self._terminal, token)
            except BlockingIOError:  # what a background job prints is in the way, and is being read
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return

    async def settle(self) -> None:
        """Have it act on an interrupt that came too late for the command it was meant for."""
        if not self.has_ended:
            await self._expect(shell_text.NOTHING_TO_DO if self._is_bash else b"echo 0 >&8\n")

    def take_late(self) -> tuple[bytes, int]:
        """Return what was printed since the last command, and how many bytes before that were dropped."""
        late, dropped = bytes(self._late), self._late_dropped
        self._late.clear()
        self._late_dropped = 0
        return late, dropped

    def directory(self) -> str:
        """The directory it is in now; empty when that can't be told."""
        self.last_directory = self._processes.directory_of(self.pid)
        return self.last_directory

    def interrupt(self) -> None:
        """Have it end what it runs, write its state down and leave."""
        self.directory()
        processes.send(self.pid, shell_text.INTERRUPT if self._is_bash else signal.SIGKILL)

    def kill(self) -> None:
        processes.send(self.pid, signal.SIGKILL)

    async def kill_all(self) -> None:
        """Kill it and everything it ever started."""
        await self._processes.kill_members(self.pid, self.family.encode())

    async def is_through(self, seconds: float) -> bool:
        """Wait for the end of the command or of the shell."""
        if self._code is not None:
            await asyncio.wait([self._code], timeout=seconds)
        return self._code is None or self._code.done()

    def saved_state(self) -> bytes | None:
        """Return what it wrote down at its end; None if it was killed before, or there is too much of it."""
        if os.fstat(self._state).st_size > _MAX_STATE_BYTES:
            return None
        return shell_text.saved_state(os.pread(self._state, _MAX_STATE_BYTES, 0))

    def close(self) -> None:
        """Give back the descriptors of a shell that has ended."""
        loop = asyncio.get_running_loop()
        for descriptor in (self._status, self._output, self._master):
            loop.remove_reader(descriptor)
        for descriptor in self._ours:
            os.close(descriptor)
        self._ours.clear()

    async def _expect(self, line: bytes) -> int:
        self._code = asyncio.get_running_loop().create_future()
        if self.has_ended:
            self._on_exit(self._child.status)
        else:
            with contextlib.suppress(BrokenPipeError):  # it has just died, and its exit is on the way
                os.write(self._input, line)
        try:
            return await self._code
        finally:
            self._code = None

    def _on_status(self) -> None:
        try:
            line = os.read(self._status, 64)
        except BlockingIOError:
            return
        if not line:
            asyncio.get_running_loop().remove_reader(self._status)
        elif self._code is not None and not self._code.done():
            number = line.strip()
            self._code.set_result(int(number) if number.isdigit() else 0)

    def _on_exit(self, status: asyncio.Future[int]) -> None:
        if self._code is not None and not self._code.done():
            self._code.set_result(processes.exit_code(status.result())[0])

    def _watch_late(self) -> None:
        if self._ours:
            for descriptor in (self._output, self._master):
                asyncio.get_running_loop().add_reader(descriptor, self._on_late, descriptor)

    def _unwatch_late(self) -> None:
        for descriptor in (self._output, self._master):
            asyncio.get_running_loop().remove_reader(descriptor)

    def _on_late(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _LATE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(descriptor)
        self._late += data
        if (excess := len(self._late) - _LATE_BYTES) > 0:
            del self._late[:excess]
            self._late_dropped += excess

    def _spawn(
        self, shell: str, env: dict[str, str], directory: str, account: accounts.Account, state: bytes
    ) -> processes.Child:
        theirs: list[int] = []
        try:
            input_end, self._input = os.pipe()
            self._status, status_end = os.pipe()
            self._output, output_end = os.pipe()
            self._master, self._terminal = os.openpty()
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
            _without_echo(self._terminal)
            self._text = os.memfd_create("text", os.MFD_CLOEXEC)
            self._state = os.memfd_create("state", os.MFD_CLOEXEC)
            nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            self._ours = [
                self._input, self._status, self._output, self._master, self._terminal, self._text, self._state
            ]  # fmt: skip
            theirs = [input_end, status_end, output_end, nothing]
            for descriptor in (self._status, self._output, self._master):
                os.set_blocking(descriptor, False)
            names = {
                status_end: shell_text.STATUS,
                self._text: shell_text.TEXT,
                self._state: shell_text.STATE,
                output_end: shell_text.OUTPUT,
                self._terminal: shell_text.TERMINAL,
                nothing: shell_text.NOTHING,
            }
            if self._is_bash:
                _write_all(self._state, shell_text.opening(state))
                argv = [shell, "--noprofile", "--norc"]
            else:
                names = {ours: shell_text.PLAIN[name] for ours, name in names.items() if name in shell_text.PLAIN}
                argv = [shell]
            files: list[tuple[int, int]] = []
            for ours, name in ((input_end, 0), (nothing, 1), (nothing, 2), *names.items()):
                moved = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, _OURS)
                theirs.append(moved)
                files.append((moved, name))
            return self._processes.spawn(argv, env=env, cwd=directory, files=files, account=account)
        except (OSError, ValueError) as error:
            for descriptor in self._ours:
                os.close(descriptor)
            self._ours.clear()
            raise Refusal("invalid_request", f"the shell can't be started: {error}") from error
        finally:
            for descriptor in theirs:
                os.close(descriptor)


def _without_echo(terminal: int) -> None:
    attributes = termios.tcgetattr(terminal)
    attributes[3] &= ~(termios.ECHO | termios.ECHONL)
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)


def _write_all(file: int, content: bytes) -> None:
    offset = 0
    while offset < len(content):
        offset += os.pwrite(file, content[offset : offset + (1 << 20)], offset)
