"""The handle of one sandbox, from which everything else is reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from cellbox.client._sync._connection import Connection
from cellbox.client._sync._context import CodeContext
from cellbox.client._sync._filesystem import Filesystem
from cellbox.client._sync._shell import Shells
from cellbox.client._sync._states import SandboxStates
from cellbox.client._sync._stream import EventStream
from cellbox.client._codec import Query
from cellbox.client._compat import Lock, shielded
from cellbox.client._default import default_client
from cellbox.client._errors import partial_command
from cellbox.client._results import Execution
from cellbox.client._timeouts import asked_seconds, command_silence_seconds
from cellbox.errors import APIError, CellboxError, CommandFailedError, ContextNotFoundError, SandboxNotFoundError
from cellbox.protocol import operations
from cellbox.protocol.account import LogLine
from cellbox.protocol.commands import CommandEvent, CommandResult, RunCommand
from cellbox.protocol.contexts import CreateContext
from cellbox.protocol.file_operations import SANDBOX_FILES
from cellbox.protocol.sandboxes import (
    DEFAULT_TEMPLATE,
    Lifecycle,
    OnTimeout,
    SandboxInfo,
    SandboxStatus,
    SandboxUsage,
    UpdateLifecycle,
    UpdateMetadata,
    VolumeMount,
)

if TYPE_CHECKING:
    from cellbox.client._sync._client import Client
    from cellbox.client._journal import Journal

LogStream = Literal["both", "stdout", "stderr"]
_CLEAN_UP_SECONDS = 10.0


class Sandbox(SandboxStates):
    """One isolated machine. Make it with `Sandbox.create`, find it again with `Sandbox.get`.

    As a context manager it is killed at the end of the block, unless it is persistent.
    """

    def __init__(self, connection: Connection, info: SandboxInfo) -> None:
        super().__init__(connection, info)
        self._lock = Lock()
        self._default_context: CodeContext | None = None
        self.filesystem = Filesystem(connection, SANDBOX_FILES, self._ids)
        self.commands = Commands(self)
        self.shells = Shells(connection, info.id)

    @classmethod
    def create(
        cls,
        template: str = DEFAULT_TEMPLATE,
        *,
        from_snapshot: str | None = None,
        ttl_seconds: float | None = None,
        on_timeout: OnTimeout = "kill",
        persistent: bool = False,
        metadata: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        cpu: float | None = None,
        memory_mb: int | None = None,
        disk_mb: int | None = None,
        workspace: str | None = None,
        volumes: Iterable[VolumeMount | Mapping[str, Any]] = (),
        network: Literal["none"] = "none",
        retry_seconds: float = 60,
        client: Client | None = None,
    ) -> Sandbox:
        """Create a sandbox and wait until it can run code.

        Args:
            template: What it is made from: `code-interpreter`, `base`, `node` or one of your own.
            from_snapshot: Id of a snapshot to go on from, whose template and sizes win over the ones given here.
            ttl_seconds: Its life from now; then it is removed, whatever became of this process. Default one hour, at
                most 30 days.
            on_timeout: `hibernate` puts it on disk when its time is over, instead of removing it.
            persistent: Let it live until it is killed, and not end with a `with` block.
            metadata: Labels to find it by.
            env: Environment variables of all its commands and kernels.
            cpu: Cores; by default the template's.
            memory_mb: MiB of memory; by default the template's.
            disk_mb: MiB of writable disk, in memory on top of `memory_mb`; by default the template's.
            workspace: Name of the workspace to mount at `/workspace`: what is written there outlives the sandbox. It is
                created when there is none of this name.
            volumes: More workspaces to mount, which must exist: `{"name": …, "read_only": …, "path": …}`, by default at
                `/volumes/NAME`.
            network: `none` has the loopback device only.
            retry_seconds: How long to go on asking while the daemon has no room. 0 asks once.
            client: By default one that is configured from the environment and shared.

        Raises:
            UnknownTemplateError: No such template.
            SnapshotNotFoundError: No such snapshot, or it is someone else's.
            SnapshotUnusableError: The snapshot is damaged, or was made by another engine, processor or Cellbox.
            CapacityError: There was no room for `retry_seconds`. Nothing was created.
            QuotaExceededError: The owner has as many sandboxes as it may.
            EngineUnavailableError: The host can't isolate; run `cellbox doctor` there.
            DaemonUnavailableError: No daemon answers, or a local one could not be started.
        """
        client = client or default_client()
        return client.sandboxes.create(
            template,
            from_snapshot=from_snapshot,
            ttl_seconds=ttl_seconds,
            on_timeout=on_timeout,
            persistent=persistent,
            metadata=metadata,
            env=env,
            cpu=cpu,
            memory_mb=memory_mb,
            disk_mb=disk_mb,
            workspace=workspace,
            volumes=volumes,
            network=network,
            retry_seconds=retry_seconds,
        )

    @classmethod
    def get(cls, sandbox_id: str, *, client: Client | None = None) -> Sandbox:
        """Find a sandbox by its id.

        Raises:
            SandboxNotFoundError: There is none, or it is someone else's.
        """
        return (client or default_client()).sandboxes.get(sandbox_id)

    @classmethod
    def list(cls, *, client: Client | None = None) -> list[Sandbox]:
        """The caller's sandboxes, newest first."""
        return (client or default_client()).sandboxes.list()

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def info(self) -> SandboxInfo:
        """All that is known of it, as of the last answer about it; `refresh` asks anew."""
        return self._info

    @property
    def template(self) -> str:
        return self._info.template

    @property
    def status(self) -> SandboxStatus:
        """Its status as of the last answer about it."""
        return self._info.status

    @property
    def metadata(self) -> dict[str, str]:
        return self._info.metadata

    @property
    def persistent(self) -> bool:
        return self._info.persistent

    @property
    def created_at(self) -> datetime:
        return self._info.created_at

    @property
    def expires_at(self) -> datetime | None:
        """When it is removed; `None` for a persistent one."""
        return self._info.expires_at

    @property
    def cpu(self) -> float:
        """Cores."""
        return self._info.cpu

    @property
    def memory_mb(self) -> int:
        return self._info.memory_mb

    @property
    def disk_mb(self) -> int:
        return self._info.disk_mb

    @property
    def boot_ms(self) -> float:
        """How long its creation took in the daemon."""
        return self._info.boot_ms

    @property
    def boot_mode(self) -> str:
        """`snapshot`, `cold` or `fork`."""
        return self._info.boot_mode

    def kill(self) -> None:
        """Kill it and remove everything of it. One that is gone already is fine."""
        with suppress(SandboxNotFoundError):
            self._connection.call(operations.kill_sandbox, ids=self._ids)

    def lifecycle(self) -> Lifecycle:
        """How long it has to live, and for how long it has been idle."""
        return self._connection.call(operations.get_lifecycle, ids=self._ids)

    def set_ttl(self, seconds: float) -> Lifecycle:
        """Let it live for so many seconds from now, at most 30 days."""
        return self._update_lifecycle(UpdateLifecycle(ttl_seconds=seconds))

    def set_persistent(self, persistent: bool = True) -> Lifecycle:
        """Let it live until it is killed, or make its TTL count again."""
        return self._update_lifecycle(UpdateLifecycle(persistent=persistent))

    def set_on_timeout(self, on_timeout: OnTimeout) -> Lifecycle:
        """Say what becomes of it when its time is over: `kill` or `hibernate`."""
        return self._update_lifecycle(UpdateLifecycle(on_timeout=on_timeout))

    def _update_lifecycle(self, body: UpdateLifecycle) -> Lifecycle:
        lifecycle = self._connection.call(operations.update_lifecycle, body, ids=self._ids)
        self._info = msgspec.structs.replace(
            self._info,
            persistent=lifecycle.persistent,
            ttl_seconds=lifecycle.ttl_seconds,
            expires_at=lifecycle.expires_at,
            on_timeout=lifecycle.on_timeout,
        )
        return lifecycle

    def update_metadata(self, metadata: Mapping[str, str]) -> None:
        """Replace all of its metadata."""
        body = UpdateMetadata(metadata=dict(metadata))
        self._info = self._connection.call(operations.update_metadata, body, ids=self._ids)

    def usage(self) -> SandboxUsage:
        """What it uses now, measured on the host."""
        return self._connection.call(operations.get_usage, ids=self._ids)

    def logs(self, *, stream: LogStream = "both", tail: int | None = None) -> str:
        """What its start command printed and what the platform has to say about it; the last `tail` lines of it."""
        query: Query = [("stream", stream), ("tail", tail)]
        return self._connection.call(operations.get_logs, query=query, ids=self._ids)

    def follow_logs(self, *, stream: LogStream = "both", tail: int | None = None) -> EventStream[LogLine]:
        """The log line by line, as it is written, until the sandbox ends or the iteration is left."""
        query: Query = [("stream", stream), ("tail", tail), ("follow", True)]
        return self._connection.stream(operations.get_logs, query=query, ids=self._ids)

    def journal(self) -> Journal:
        """Every cell and command that ran in it so far, and what came of each; also after its end."""
        from cellbox.client._sync._sandboxes import Sandboxes

        return Sandboxes(self._connection).journal(self.id)

    def exec(
        self,
        cmd: str,
        *,
        timeout_seconds: float | None = 60,
        idle_timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: str | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Run a shell command and wait for it.

        A non-zero exit is a result, and so is a command whose time was up: it was killed with everything it started,
        `reason` is `timeout`, and what it had printed is there.

        Args:
            cmd: Shell text, for `bash`, or `sh` where there is no bash.
            timeout_seconds: `None` stands for the longest the daemon allows, 24 hours.
            idle_timeout_seconds: Kill it when it prints nothing for so long.
            env: Environment variables for this command only.
            cwd: Absolute. Default `/workspace`.
            user: Name or number of a user in the sandbox. Default root.
            stdin: Text for its standard input, which is otherwise empty.
            check: Raise unless it exits with 0 by itself.

        Raises:
            CommandFailedError: Only with `check`; its `result` holds what was printed.
            SandboxNotFoundError: The sandbox was killed or its time was up.
            ConnectionLostError: Whether the command ran is unknown. It is never sent a second time.
        """
        body = _run_command(cmd, timeout_seconds, idle_timeout_seconds, env, cwd, user, stdin)
        try:
            result = self._connection.call(
                operations.run_command, body, timeout_seconds=self._silence(body), ids=self._ids
            )
        except APIError as error:
            partial = partial_command(error)
            if partial is None:
                raise
            result = partial
        if check and (result.exit_code != 0 or result.reason != "exited"):
            raise _command_failed(cmd, result)
        return result

    def exec_stream(
        self,
        cmd: str,
        *,
        timeout_seconds: float | None = 60,
        idle_timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: str | None = None,
    ) -> EventStream[CommandEvent]:
        """Run a shell command and iterate over its events: `StdoutChunk` and `StderrChunk`, at last `CommandExited`.

        Leaving the iteration early kills the command. Arguments are those of `exec`.

        Raises (while iterating):
            SandboxNotFoundError: The sandbox was killed or its time was up.
            ConnectionLostError: The stream broke before `CommandExited`: how the command ended is unknown.
        """
        body = _run_command(cmd, timeout_seconds, idle_timeout_seconds, env, cwd, user, stdin)
        return self._connection.stream(
            operations.stream_command, body, timeout_seconds=self._silence(body), ids=self._ids
        )

    def _silence(self, body: RunCommand) -> float:
        return command_silence_seconds(body.timeout_seconds, self._connection.timeout_seconds)

    def languages(self) -> list[str]:
        """The languages that its code contexts can have."""
        return self._connection.call(operations.list_languages, ids=self._ids)

    def create_code_context(
        self, language: str = "python", *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> CodeContext:
        """Start a kernel in which variables last from cell to cell.

        Args:
            language: One of `languages()`.
            cwd: Absolute. Default `/workspace`.
            env: Environment variables of the kernel.

        Raises:
            UnknownLanguageError: The template has no kernel for it.
            SandboxNotFoundError: The sandbox was killed or its time was up.
        """
        body = CreateContext(language=language, cwd=cwd, env=dict(env or {}))
        info = self._connection.call(operations.create_context, body, ids=self._ids)
        return CodeContext(self._connection, info, self.id)

    def contexts(self) -> list[CodeContext]:
        """Its code contexts, whoever started them."""
        infos = self._connection.call(operations.list_contexts, ids=self._ids)
        return [CodeContext(self._connection, info, self.id) for info in infos]

    def get_code_context(self, context_id: str) -> CodeContext:
        """Find a code context by its id, with the variables it has.

        Raises:
            ContextNotFoundError: There is none in this sandbox.
        """
        for context in self.contexts():
            if context.id == context_id:
                return context
        raise ContextNotFoundError(f"No code context {context_id!r} in sandbox {self.id}")

    def run_code(
        self, code: str, *, timeout_seconds: float | None = 30, env: Mapping[str, str] | None = None
    ) -> Execution:
        """Run a cell in this handle's own code context, which is started at the first call and keeps its variables.

        Arguments and errors are those of `CodeContext.run_code`.
        """
        with self._lock:
            context = self._default_context = self._default_context or self.create_code_context()
        try:
            return context.run_code(code, timeout_seconds=timeout_seconds, env=env)
        except ContextNotFoundError:
            # The caller has to know that variables are gone; the next call starts anew.
            self._default_context = None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.persistent:
            return
        with shielded(_CLEAN_UP_SECONDS):
            try:
                self.kill()
            except CellboxError:
                # What went wrong in the block matters more; the TTL takes care of the sandbox.
                if error is None:
                    raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.template} {self.status}>"


class Commands:
    """Commands of one sandbox: `run` is `exec` by its other name."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def run(
        self,
        cmd: str,
        timeout: float | None = 60,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Run a shell command and wait for it, as `Sandbox.exec` does; `timeout` is in seconds."""
        return self._sandbox.exec(cmd, timeout_seconds=timeout, env=env, cwd=cwd, user=user, check=check)


def _run_command(
    cmd: str,
    timeout_seconds: float | None,
    idle_timeout_seconds: float | None,
    env: Mapping[str, str] | None,
    cwd: str | None,
    user: str | None,
    stdin: str | None,
) -> RunCommand:
    return RunCommand(
        cmd=cmd,
        timeout_seconds=asked_seconds(timeout_seconds),
        idle_timeout_seconds=idle_timeout_seconds,
        env=dict(env or {}),
        cwd=cwd,
        user=user,
        stdin=stdin,
    )


def _command_failed(cmd: str, result: CommandResult) -> CommandFailedError:
    how = f"exited with {result.exit_code}" if result.reason == "exited" else f"was stopped ({result.reason})"
    shown = cmd if len(cmd) <= 200 else cmd[:200] + " …"
    output = (result.stderr or result.stdout).strip()[-2000:]
    return CommandFailedError(f"The command {how}: {shown}" + (f"\n{output}" if output else ""), result)

# Generated from _async/_sandbox.py by tools/unasync.py: edit that, and run it again.
