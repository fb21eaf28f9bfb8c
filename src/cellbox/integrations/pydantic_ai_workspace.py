"""A sandbox as the workspace backend of Pydantic AI."""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    Workspace,
    WorkspaceBackend,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)
from pydantic_ai.workspaces.protocol import validate_timeout

from cellbox.client._async._client import AsyncClient
from cellbox.client._async._sandbox import AsyncSandbox
from cellbox.errors import (
    PathConflictError,
    PathNotFoundError,
    PermissionDeniedError,
    SandboxNotFoundError,
    SandboxNotRunningError,
    StorageFullError,
)
from cellbox.protocol.sandboxes import DEFAULT_TEMPLATE

PROVIDER = "cellbox"
WORKING_DIR = "/workspace"


class CellboxWorkspaceBackend:
    """One sandbox, made at the first use or attached to by its ref. Only `CellboxWorkspace.destroy` kills it.

    Args:
        ref: The sandbox to attach to.
        template: What a new one is made from.
        ttl_seconds: How long a new one lives.
        client: By default one that is configured from the environment and shared.
    """

    def __init__(
        self,
        ref: WorkspaceRef | None = None,
        *,
        template: str = DEFAULT_TEMPLATE,
        ttl_seconds: float = 3600,
        client: AsyncClient | None = None,
        **options: Any,
    ) -> None:
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"The ref is of the provider {ref.provider!r}, not {PROVIDER!r}")
        self._ref = ref
        self._options = {"template": template, "ttl_seconds": ttl_seconds, "client": client, **options}
        self._client = client
        self._opening: asyncio.Task[AsyncSandbox] | None = None
        self._by_shell = Workspace(_CommandsOnly(self))

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._ref

    async def working_dir(self) -> str:
        with _workspace_errors():
            await self.sandbox()
        return WORKING_DIR

    async def sandbox(self) -> AsyncSandbox:
        """The sandbox itself, for what the protocol has no words for."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.ensure_future(self._open())
        # A caller that is cancelled must not take along a sandbox that others wait for, or that exists already.
        return await asyncio.shield(self._opening)

    async def _open(self) -> AsyncSandbox:
        if self._ref is not None:
            return await AsyncSandbox.get(self._ref.id, client=self._client)
        sandbox = await AsyncSandbox.create(**self._options)
        self._ref = WorkspaceRef(provider=PROVIDER, id=sandbox.id)
        return sandbox

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        if isinstance(command, str) is not shell:
            raise TypeError("A string needs shell=True, a sequence of arguments shell=False")
        validate_timeout(timeout)
        text = command if isinstance(command, str) else shlex.join(command)
        with _workspace_errors():
            sandbox = await self.sandbox()
            result = await sandbox.exec(text, timeout_seconds=timeout, env=env, cwd=WORKING_DIR)
        if result.reason in ("timeout", "idle_timeout"):
            raise WorkspaceTimeoutError(
                f"The command exceeded its {timeout} s and was killed", stdout=result.stdout, stderr=result.stderr
            )
        if dropped := result.stdout_dropped_bytes + result.stderr_dropped_bytes:
            limit = len(result.stdout) + len(result.stderr)
            raise WorkspaceOutputLimitError(
                f"The command printed {dropped} bytes more than can be collected: write to a file instead",
                limit=limit,
                stdout=result.stdout,
                stderr=result.stderr,
            )
        return CommandResult(exit_code=result.exit_code, stdout=result.stdout, stderr=result.stderr)

    async def read_bytes(self, path: str) -> bytes:
        with _workspace_errors(path):
            sandbox = await self.sandbox()
            try:
                return await sandbox.filesystem.read(path)
            except PathConflictError as error:
                raise await self._path_conflict(error, path) from error

    async def write_bytes(self, path: str, data: bytes) -> None:
        with _workspace_errors(path):
            sandbox = await self.sandbox()
            try:
                await sandbox.filesystem.write(path, data)
            except PathConflictError as error:
                raise await self._path_conflict(error, path) from error

    async def _path_conflict(self, error: PathConflictError, path: str) -> OSError:
        """Tell apart what is one code on our wire: a directory, a file among the parents, anything else."""
        number = errno.EINVAL
        if os.strerror(errno.ENOTDIR) in error.message:
            number = errno.ENOTDIR
        elif (await self.run(["test", "-d", path])).exit_code == 0:
            number = errno.EISDIR
        return OSError(number, error.message, path)

    # Where links are followed, and where errors are told apart, the framework's own derivation is the definition.

    async def stat(self, path: str) -> FileEntry:
        return await self._by_shell.stat(path)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        return await self._by_shell.list_dir(path)

    async def make_dir(self, path: str) -> None:
        await self._by_shell.make_dir(path)

    async def remove(self, path: str) -> None:
        await self._by_shell.remove(path)

    async def exists(self, path: str) -> bool:
        return await self._by_shell.exists(path)

    async def realpath(self, path: str) -> str:
        result = await self.run(["realpath", "--canonicalize-missing", "--zero", "--", path])
        if result.exit_code:
            raise OSError(errno.ELOOP, result.stderr.strip(), path)
        return result.stdout.removesuffix("\0")


class _CommandsOnly:
    """The same backend without its own file access."""

    def __init__(self, backend: CellboxWorkspaceBackend) -> None:
        self._backend = backend
        self.run = backend.run
        self.working_dir = backend.working_dir

    @property
    def ref(self) -> WorkspaceRef | None:
        return self._backend.ref


class CellboxWorkspace(AbstractCapability[Any]):
    """Gives the runs of an agent a sandbox as their workspace: `Agent(capabilities=[CellboxWorkspace()])`.

    A run that continues a message history finds the sandbox of that history again. Arguments are those of
    `AsyncSandbox.create`.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options

    def get_workspace(self, ctx: RunContext[Any], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        del ctx
        return None if ref is not None and ref.provider != PROVIDER else self.backend(ref)

    def backend(self, ref: WorkspaceRef | None = None) -> CellboxWorkspaceBackend:
        """A backend for a new sandbox, or for the one that the ref names."""
        return CellboxWorkspaceBackend(ref, **self._options)

    async def destroy(self, ref: WorkspaceRef) -> None:
        """Kill the sandbox that the ref names. One that is gone already is fine."""
        try:
            sandbox = await AsyncSandbox.get(ref.id, client=self._options.get("client"))
        except SandboxNotFoundError:
            return
        await sandbox.kill()


@contextmanager
def _workspace_errors(path: str = "") -> Generator[None]:
    """Our errors as the protocol's."""
    try:
        yield
    except (SandboxNotFoundError, SandboxNotRunningError) as error:
        raise WorkspaceUnavailableError(str(error)) from error
    except PathNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
    except PermissionDeniedError as error:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path) from error
    except StorageFullError as error:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path) from error
