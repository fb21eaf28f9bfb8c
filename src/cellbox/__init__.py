"""Cellbox: a computer of its own for every AI agent.

```python
from cellbox import Sandbox

with Sandbox.create(ttl_seconds=600) as sandbox:
    print(sandbox.exec("uname -a").stdout)
    print(sandbox.run_code("6 * 7").text)
```

Everything public is here. Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cellbox._version import __version__

if TYPE_CHECKING:
    from cellbox.client._async._client import AsyncClient
    from cellbox.client._async._context import AsyncCodeContext
    from cellbox.client._async._filesystem import AsyncFilesystem
    from cellbox.client._async._sandbox import AsyncSandbox
    from cellbox.client._async._shell import AsyncShell
    from cellbox.client._async._stream import AsyncEventStream
    from cellbox.client._async._watch import AsyncFileWatch
    from cellbox.client._async._workspaces import AsyncWorkspace
    from cellbox.client._journal import Journal
    from cellbox.client._results import Execution, Result
    from cellbox.client._sync._client import Client
    from cellbox.client._sync._context import CodeContext
    from cellbox.client._sync._filesystem import Filesystem
    from cellbox.client._sync._sandbox import Sandbox
    from cellbox.client._sync._shell import Shell
    from cellbox.client._sync._stream import EventStream
    from cellbox.client._sync._watch import FileWatch
    from cellbox.client._sync._workspaces import Workspace
    from cellbox.errors import (
        APIError,
        AuthenticationError,
        CapacityError,
        CellboxError,
        CodeFailedError,
        CommandFailedError,
        ConfigurationError,
        ConflictError,
        ConnectionLostError,
        ContextNotFoundError,
        DaemonUnavailableError,
        EngineUnavailableError,
        GuestError,
        InternalError,
        InvalidRequestError,
        KeyNotFoundError,
        NotFoundError,
        PathConflictError,
        PathNotFoundError,
        PermissionDeniedError,
        QuotaExceededError,
        SandboxNotFoundError,
        SandboxNotRunningError,
        ShellNotFoundError,
        SnapshotNotFoundError,
        SnapshotUnusableError,
        StorageFullError,
        TemplateBuildError,
        TemplateExistsError,
        TemplateNotFoundError,
        TooLargeError,
        UnknownLanguageError,
        UnknownTemplateError,
        WorkspaceExistsError,
        WorkspaceInUseError,
        WorkspaceNotFoundError,
    )
    from cellbox.protocol.commands import CommandExited, CommandResult, StderrChunk, StdoutChunk
    from cellbox.protocol.contexts import CellDisplay, CellEnded
    from cellbox.protocol.files import FileChange, FileInfo, Unpacked
    from cellbox.protocol.journal import CellEntry, CommandEntry, ShellEntry
    from cellbox.protocol.sandboxes import Lifecycle, SandboxInfo, SandboxStatus, SandboxUsage, VolumeMount
    from cellbox.protocol.shells import ShellCommandEnded, ShellInfo, ShellOutput, ShellResult
    from cellbox.protocol.snapshots import Promotion, SnapshotInfo
    from cellbox.protocol.workspaces import WorkspaceInfo

__all__ = [
    "APIError",
    "AsyncClient",
    "AsyncCodeContext",
    "AsyncEventStream",
    "AsyncFileWatch",
    "AsyncFilesystem",
    "AsyncSandbox",
    "AsyncShell",
    "AsyncWorkspace",
    "AuthenticationError",
    "CapacityError",
    "CellDisplay",
    "CellEnded",
    "CellEntry",
    "CellboxError",
    "Client",
    "CodeContext",
    "CodeFailedError",
    "CommandEntry",
    "CommandExited",
    "CommandFailedError",
    "CommandResult",
    "ConfigurationError",
    "ConflictError",
    "ConnectionLostError",
    "ContextNotFoundError",
    "DaemonUnavailableError",
    "EngineUnavailableError",
    "EventStream",
    "Execution",
    "FileChange",
    "FileInfo",
    "FileWatch",
    "Filesystem",
    "GuestError",
    "InternalError",
    "InvalidRequestError",
    "Journal",
    "KeyNotFoundError",
    "Lifecycle",
    "NotFoundError",
    "PathConflictError",
    "PathNotFoundError",
    "PermissionDeniedError",
    "Promotion",
    "QuotaExceededError",
    "Result",
    "Sandbox",
    "SandboxInfo",
    "SandboxNotFoundError",
    "SandboxNotRunningError",
    "SandboxStatus",
    "SandboxUsage",
    "Shell",
    "ShellCommandEnded",
    "ShellEntry",
    "ShellInfo",
    "ShellNotFoundError",
    "ShellOutput",
    "ShellResult",
    "SnapshotInfo",
    "SnapshotNotFoundError",
    "SnapshotUnusableError",
    "StderrChunk",
    "StdoutChunk",
    "StorageFullError",
    "TemplateBuildError",
    "TemplateExistsError",
    "TemplateNotFoundError",
    "TooLargeError",
    "UnknownLanguageError",
    "UnknownTemplateError",
    "Unpacked",
    "VolumeMount",
    "Workspace",
    "WorkspaceExistsError",
    "WorkspaceInUseError",
    "WorkspaceInfo",
    "WorkspaceNotFoundError",
    "__version__",
]

_HOMES = {
    "cellbox.client._async._client": "AsyncClient",
    "cellbox.client._async._context": "AsyncCodeContext",
    "cellbox.client._async._filesystem": "AsyncFilesystem",
    "cellbox.client._async._sandbox": "AsyncSandbox",
    "cellbox.client._async._shell": "AsyncShell",
    "cellbox.client._async._stream": "AsyncEventStream",
    "cellbox.client._async._watch": "AsyncFileWatch",
    "cellbox.client._async._workspaces": "AsyncWorkspace",
    "cellbox.client._journal": "Journal",
    "cellbox.client._results": "Execution Result",
    "cellbox.client._sync._client": "Client",
    "cellbox.client._sync._context": "CodeContext",
    "cellbox.client._sync._filesystem": "Filesystem",
    "cellbox.client._sync._sandbox": "Sandbox",
    "cellbox.client._sync._shell": "Shell",
    "cellbox.client._sync._stream": "EventStream",
    "cellbox.client._sync._watch": "FileWatch",
    "cellbox.client._sync._workspaces": "Workspace",
    "cellbox.protocol.commands": "CommandExited CommandResult StderrChunk StdoutChunk",
    "cellbox.protocol.contexts": "CellDisplay CellEnded",
    "cellbox.protocol.files": "FileChange FileInfo Unpacked",
    "cellbox.protocol.journal": "CellEntry CommandEntry ShellEntry",
    "cellbox.protocol.shells": "ShellCommandEnded ShellInfo ShellOutput ShellResult",
    "cellbox.protocol.sandboxes": "Lifecycle SandboxInfo SandboxStatus SandboxUsage VolumeMount",
    "cellbox.protocol.snapshots": "Promotion SnapshotInfo",
    "cellbox.protocol.workspaces": "WorkspaceInfo",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name) or ("cellbox.errors" if name in __all__ else None)
    if home is None:
        raise AttributeError(f"module 'cellbox' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
