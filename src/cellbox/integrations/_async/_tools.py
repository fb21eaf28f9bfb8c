"""The tools themselves: what a model asks for, done in a sandbox, answered so that it can go on."""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Self

import msgspec

from cellbox.client._async._sandbox import AsyncSandbox
from cellbox.client._compat import async_sleep
from cellbox.errors import (
    APIError,
    CapacityError,
    CellboxError,
    ConnectionLostError,
    ContextNotFoundError,
    DaemonUnavailableError,
    GuestError,
    InvalidRequestError,
    PathConflictError,
    PathNotFoundError,
    PermissionDeniedError,
    SandboxNotFoundError,
    SandboxNotRunningError,
    StorageFullError,
)
from cellbox.integrations import tool_specs
from cellbox.integrations._async._sessions import AsyncBoundSession, AsyncSession, AsyncSessions
from cellbox.integrations.answers import Limits, ToolAnswer, clip, from_command, from_execution
from cellbox.integrations.artifacts import ArtifactStore
from cellbox.integrations.facts import Facts
from cellbox.integrations.tool_specs import (
    ARGUMENTS,
    DEFAULT_SECONDS,
    Arguments,
    InstallPackages,
    ListFiles,
    ReadFile,
    RunPython,
    RunShell,
    ToolSpec,
    ViewImage,
    WriteFile,
)

_BACKOFF_SECONDS = 0.5
_INSTALL_SECONDS = 600.0
_MAX_IMAGE_BYTES = 20 * 1024 * 1024
_IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?([<>=!~]{1,3}[A-Za-z0-9.*+!,<>=~_-]+)?")
_FOR_THE_MODEL = (PathNotFoundError, PathConflictError, PermissionDeniedError, StorageFullError, InvalidRequestError)
"""Errors that a model can do something about."""


class AsyncSandboxTools:
    """Tools over one sandbox: `run_python`, `run_shell`, `read_file`, `write_file`, `list_files`, `install_packages`.

    What the model's code does wrong comes back in the answer. What the platform does wrong is tried once more, where
    that can't do anything twice, and raised.

    Args:
        session: A session, or a sandbox that you made. By default a sandbox is made at the first call and killed by
            `aclose`.
        limits: How much of each part of an answer the model is given.
        artifacts: Where images go; by default the session's own store.
        facts: What the descriptions say of the sandbox; by default what it really is.

    Raises (all tools):
        DaemonUnavailableError: No daemon answers.
        CapacityError: There is no room for a sandbox.
        ConnectionLostError: Whether code or a command ran is unknown. It is never sent a second time.
    """

    def __init__(
        self,
        session: AsyncSession | AsyncSandbox | None = None,
        *,
        limits: Limits | None = None,
        artifacts: ArtifactStore | None = None,
        facts: Facts | None = None,
    ) -> None:
        self._own_sessions: AsyncSessions | None = None
        if session is None:
            self._own_sessions = AsyncSessions()
            session = self._own_sessions.session("tools")
        self.session = AsyncBoundSession(session) if isinstance(session, AsyncSandbox) else session
        """Where the tools work."""
        if artifacts is not None:
            self.session.artifacts = artifacts
        self.limits = limits or Limits()
        self._facts = facts

    @property
    def artifacts(self) -> ArtifactStore:
        """Where images go."""
        return self.session.artifacts

    def facts(self) -> Facts:
        """What the sandbox is. The first time, the daemon may be asked, which blocks for a few milliseconds."""
        self._facts = self._facts or self.session.facts()
        return self._facts

    def specs(self, only: Collection[str] | None = None) -> list[ToolSpec]:
        """The tools as frameworks need them: name, description, JSON Schema.

        Args:
            only: Names of the tools, in place of the usual ones.
        """
        return tool_specs.tool_specs(self.facts(), self.limits, only)

    async def call(self, name: str, arguments: Mapping[str, Any] | str | bytes) -> ToolAnswer:
        """Call a tool by its name, with arguments as a model wrote them: an object, or its JSON text.

        Raises:
            ValueError: There is no tool of that name.
        """
        kind = ARGUMENTS.get(name)
        if kind is None:
            raise ValueError(f"No tool {name!r}; there are {', '.join(ARGUMENTS)}")
        try:
            if isinstance(arguments, (str, bytes)):
                arguments = msgspec.json.decode(arguments or b"{}", type=dict[str, Any])
            return await self._run(msgspec.convert(dict(arguments), kind, strict=False))
        except (msgspec.DecodeError, UnicodeError) as error:
            return ToolAnswer(
                error=f"The arguments of {name} make no sense: {error}", hint="Correct them and call again."
            )

    async def run_python(self, code: str, timeout_seconds: float = DEFAULT_SECONDS) -> ToolAnswer:
        """Run Python; variables and imports persist from call to call."""
        return await self._run(RunPython(code=code, timeout_seconds=timeout_seconds))

    async def run_shell(self, command: str, timeout_seconds: float = DEFAULT_SECONDS) -> ToolAnswer:
        """Run a bash command in a fresh shell."""
        return await self._run(RunShell(command=command, timeout_seconds=timeout_seconds))

    async def read_file(self, path: str, offset: int = 0) -> ToolAnswer:
        """Read part of a text file, or show an image to the user."""
        return await self._run(ReadFile(path=path, offset=offset))

    async def write_file(self, path: str, content: str) -> ToolAnswer:
        """Write a text file."""
        return await self._run(WriteFile(path=path, content=content))

    async def list_files(self, path: str = "/workspace", depth: int = 1) -> ToolAnswer:
        """List a directory."""
        return await self._run(ListFiles(path=path, depth=depth))

    async def install_packages(self, packages: list[str]) -> ToolAnswer:
        """Install Python packages with pip, where there is a network."""
        return await self._run(InstallPackages(packages=packages))

    async def view_image(self, image: str) -> ToolAnswer:
        """Name an image for a vision model to look at: it is in the answer's `shown`."""
        return await self._run(ViewImage(image=image))

    async def aclose(self) -> None:
        """Kill the sandbox, if these tools made it."""
        if self._own_sessions is not None:
            await self._own_sessions.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _run(self, arguments: Arguments) -> ToolAnswer:
        """Do it; once more after a fault of the platform, where that is safe."""
        try:
            answer = await self._perform(arguments)
        except _FOR_THE_MODEL as error:
            answer = ToolAnswer(error=str(error))
        except CellboxError as error:
            died = await self._recover(error, arguments)
            answer = died or await self._perform_again(arguments)
        notices = self.session.take_notices()
        return msgspec.structs.replace(answer, notices=[*notices, *answer.notices]) if notices else answer

    async def _perform_again(self, arguments: Arguments) -> ToolAnswer:
        try:
            return await self._perform(arguments)
        except _FOR_THE_MODEL as error:
            return ToolAnswer(error=str(error))

    async def _recover(self, error: CellboxError, arguments: Arguments) -> ToolAnswer | None:
        """Get ready for a second try. Returns an answer if there should be none; raises `error` if nothing helps."""
        if isinstance(error, ContextNotFoundError):
            await self.session.forget_context()
        elif isinstance(error, (SandboxNotFoundError, SandboxNotRunningError, GuestError)):
            if not await self.session.evict_if_gone():
                raise error
            if isinstance(error, GuestError):
                return ToolAnswer(
                    error=f"The sandbox died while this ran ({error.message}).",
                    hint="The next call gets a fresh one, without variables and files; use less memory.",
                )
        elif isinstance(error, DaemonUnavailableError) or (arguments.is_repeatable and _is_passing(error)):
            await async_sleep(_BACKOFF_SECONDS)
        else:
            raise error
        return None

    async def _perform(self, arguments: Arguments) -> ToolAnswer:
        match arguments:
            case RunPython():
                context = await self.session.context()
                execution = await context.run_code(arguments.code, timeout_seconds=arguments.timeout_seconds)
                return from_execution(execution, self.limits, self.artifacts)
            case RunShell():
                sandbox = await self.session.sandbox()
                result = await sandbox.exec(arguments.command, timeout_seconds=arguments.timeout_seconds)
                return from_command(result, self.limits, arguments.timeout_seconds)
            case ReadFile():
                return await self._read(_absolute(arguments.path), arguments.offset)
            case WriteFile():
                sandbox = await self.session.sandbox()
                written = await sandbox.filesystem.write(_absolute(arguments.path), arguments.content)
                return ToolAnswer(result=f"Wrote {written.path} ({written.bytes} bytes).")
            case ListFiles():
                return await self._list(_absolute(arguments.path), arguments.depth)
            case InstallPackages():
                return await self._install(arguments.packages)
            case ViewImage():
                return self._view(arguments.image)
            case _:
                raise AssertionError(f"no tool for {arguments!r}")

    async def _read(self, path: str, offset: int) -> ToolAnswer:
        sandbox = await self.session.sandbox()
        data = await sandbox.filesystem.read(path, offset=offset, length=self.limits.file)
        size = (await sandbox.filesystem.stat(path)).size
        mime = next((mime for magic, mime in _IMAGES.items() if data.startswith(magic)), None)
        if mime is not None and not offset and size <= _MAX_IMAGE_BYTES:
            return ToolAnswer(artifacts=[self.artifacts.put(mime, await sandbox.filesystem.read(path))])
        if b"\0" in data:
            return ToolAnswer(
                error=f"{path} is a binary file of {size} bytes.", hint="Read it with Python in run_python."
            )
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        text = decoder.decode(data)
        end = offset + len(data) - len(decoder.getstate()[0])
        if end < size and end > offset:
            text += f"\n[… {size - end} of {size} bytes follow: read on with offset={end} …]"
        return ToolAnswer(result=text or f"({path} has nothing at byte {offset}; it has {size} bytes)")

    async def _list(self, path: str, depth: int) -> ToolAnswer:
        sandbox = await self.session.sandbox()
        entries = await sandbox.filesystem.list(path, depth=depth)
        lines = [f"{entry.path}/" if entry.is_dir else f"{entry.path}  {entry.size} bytes" for entry in entries]
        return ToolAnswer(result=clip("\n".join(lines) or f"({path} is empty)", self.limits.result))

    async def _install(self, packages: list[str]) -> ToolAnswer:
        if wrong := [package for package in packages if not _PACKAGE.fullmatch(package)]:
            return ToolAnswer(error=f"{wrong[0]!r} is no name of a package.", hint="Give names as on PyPI, no options.")
        if not self.facts().has_network:
            return ToolAnswer(
                error="Nothing can be installed: this sandbox has no network.",
                hint="Use what is installed; `%pip list` in run_python shows it.",
            )
        sandbox = await self.session.sandbox()
        names = " ".join(shlex.quote(package) for package in packages)
        command = f"python3 -m pip install --quiet --disable-pip-version-check -- {names}"
        result = await sandbox.exec(command, timeout_seconds=_INSTALL_SECONDS)
        answer = from_command(result, self.limits, _INSTALL_SECONDS)
        if result.exit_code == 0:
            return msgspec.structs.replace(answer, result=f"Installed {', '.join(packages)}.")
        return msgspec.structs.replace(answer, error=answer.error or "pip could not install this.")

    def _view(self, image: str) -> ToolAnswer:
        found = self.artifacts.get(image)
        if found is None or not found[0].is_viewable:
            names = ", ".join(artifact.id for artifact in self.artifacts.list() if artifact.is_viewable)
            return ToolAnswer(error=f"There is no image {image!r}.", hint=f"There are: {names or 'none'}.")
        return ToolAnswer(result=f"{found[0].name} is shown with this answer.", shown=[found[0]])


def _is_passing(error: CellboxError) -> bool:
    """Whether the fault may be gone a moment later."""
    if isinstance(error, CapacityError):
        return False  # a create has waited for room already
    return isinstance(error, ConnectionLostError) or (isinstance(error, APIError) and error.http_status >= 500)


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"/workspace/{path}"
