"""Shells: commands that find directory, variables and background jobs as the one before left them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from cellbox.client._async._connection import AsyncConnection
from cellbox.client._async._stream import AsyncEventStream
from cellbox.client._compat import async_shielded
from cellbox.client._timeouts import asked_seconds, cell_silence_seconds
from cellbox.errors import CellboxError, SandboxNotFoundError, ShellNotFoundError
from cellbox.protocol import operations
from cellbox.protocol.shells import CreateShell, RunInShell, ShellEvent, ShellInfo, ShellResult

_CLEAN_UP_SECONDS = 10.0


class AsyncShell:
    """One shell in a sandbox. Its commands run one at a time, in the order of arrival.

    Comes from `AsyncShells.create`. As a context manager it closes itself.
    """

    def __init__(self, connection: AsyncConnection, info: ShellInfo, sandbox_id: str) -> None:
        self._connection = connection
        self._info = info
        self._ids = {"sandbox_id": sandbox_id, "shell_id": info.id}

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def info(self) -> ShellInfo:
        """The shell as it was when this handle was made."""
        return self._info

    async def run(
        self,
        cmd: str,
        *,
        timeout_seconds: float | None = 60,
        idle_timeout_seconds: float | None = None,
        terminal: bool = False,
    ) -> ShellResult:
        """Run a command and wait for it. What it changes in the shell stays for the next one.

        A non-zero exit, a time limit and even `exit` are results; `state_kept` says whether the shell lost its state.

        Args:
            cmd: Shell text, for `bash`, or `sh` where there is no bash. Its standard input is empty.
            timeout_seconds: From when it starts; commands before it in this shell don't count. At the deadline it is
                interrupted, and killed if need be. `None` stands for the longest the daemon allows, 24 hours.
            idle_timeout_seconds: End it when it prints nothing for so long.
            terminal: Let it print to a terminal, with colours and progress bars, instead of a pipe.

        Raises:
            ShellNotFoundError: The shell was closed.
            SandboxNotFoundError: The sandbox was killed or its time was up.
            ConnectionLostError: Whether the command ran is unknown. It is never sent a second time.
        """
        body = _run_in_shell(cmd, timeout_seconds, idle_timeout_seconds, terminal)
        return await self._connection.call(
            operations.run_in_shell, body, timeout_seconds=self._silence(body), ids=self._ids
        )

    def stream(
        self,
        cmd: str,
        *,
        timeout_seconds: float | None = 60,
        idle_timeout_seconds: float | None = None,
        terminal: bool = False,
    ) -> AsyncEventStream[ShellEvent]:
        """Run a command and iterate over its events: `ShellOutput`, at last `ShellCommandEnded`.

        Leaving the iteration early interrupts the command. Arguments and errors are those of `run`.
        """
        body = _run_in_shell(cmd, timeout_seconds, idle_timeout_seconds, terminal)
        return self._connection.stream(
            operations.stream_in_shell, body, timeout_seconds=self._silence(body), ids=self._ids
        )

    def _silence(self, body: RunInShell) -> float:
        return cell_silence_seconds(body.timeout_seconds, self._connection.timeout_seconds)

    async def interrupt(self) -> bool:
        """Interrupt the command that runs now, as Ctrl-C would, and say whether there was one."""
        return (await self._connection.call(operations.interrupt_shell, ids=self._ids)).was_busy

    async def close(self) -> None:
        """End the shell and what its commands left running. One that is gone already is fine."""
        with suppress(ShellNotFoundError, SandboxNotFoundError):
            await self._connection.call(operations.close_shell, ids=self._ids)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with async_shielded(_CLEAN_UP_SECONDS):
            try:
                await self.close()
            except CellboxError:
                if error is None:
                    raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"


class AsyncShells:
    """The shells of one sandbox."""

    def __init__(self, connection: AsyncConnection, sandbox_id: str) -> None:
        self._connection = connection
        self._sandbox_id = sandbox_id

    async def create(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: str | None = None
    ) -> AsyncShell:
        """Start a shell.

        Args:
            cwd: Absolute. Default `/workspace`.
            env: Environment variables it begins with.
            user: Name or number of a user in the sandbox. Default root.

        Raises:
            QuotaExceededError: The sandbox has 32 shells already.
        """
        body = CreateShell(cwd=cwd, env=dict(env or {}), user=user)
        return self._handle(await self._connection.call(operations.create_shell, body, ids=self._ids))

    async def list(self) -> list[AsyncShell]:
        """All shells of the sandbox, the one of its Sandkasten session included."""
        return [self._handle(info) for info in await self._connection.call(operations.list_shells, ids=self._ids)]

    async def get(self, shell_id: str) -> AsyncShell:
        """Find a shell again. Raises `ShellNotFoundError`."""
        ids = {**self._ids, "shell_id": shell_id}
        return self._handle(await self._connection.call(operations.get_shell, ids=ids))

    @property
    def _ids(self) -> dict[str, str]:
        return {"sandbox_id": self._sandbox_id}

    def _handle(self, info: ShellInfo) -> AsyncShell:
        return AsyncShell(self._connection, info, self._sandbox_id)


def _run_in_shell(
    cmd: str, timeout_seconds: float | None, idle_timeout_seconds: float | None, terminal: bool
) -> RunInShell:
    return RunInShell(
        cmd=cmd,
        timeout_seconds=asked_seconds(timeout_seconds),
        idle_timeout_seconds=idle_timeout_seconds,
        terminal=terminal,
    )
