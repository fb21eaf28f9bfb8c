"""What a request is answered with (CLOSE frames): a `Failure`, or the outcome that `messages.ANSWERS` names for it.

Part of `messages`, which exports all of it: import from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The operation could not be done. `code` is one of `FAILURE_CODES`."""

    type: Literal["failure"] = "failure"
    code: str
    message: str


FAILURE_CODES = frozenset(
    {
        "invalid_request",  # parameters make no sense: bad cwd, unknown user, relative path
        "unknown_language",
        "context_not_found",
        "context_limit",
        "shell_not_found",
        "shell_limit",
        "path_not_found",
        "path_conflict",
        "permission_denied",
        "storage_full",
        "cancelled",
        "internal",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Done, and there is nothing to say about it."""

    type: Literal["done"] = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """The guest is this sandbox now."""

    type: Literal["configured"] = "configured"
    python: str = ""
    shell: str = ""
    problems: list[str] = field(default_factory=list[str])
    """Limits that could not be set in the guest, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """How a command ended."""

    type: Literal["exited"] = "exited"
    exit_code: int
    """As a shell reports it: 128 + n for death by signal n."""
    signal: int = 0
    duration_ms: float
    reason: Literal["exited", "timeout", "idle_timeout", "cancelled", "out_of_memory"] = "exited"
    survivors: int = 0
    """Processes of the command's group that still run (background jobs after a normal end)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellInfo:
    """One shell."""

    type: Literal["shell"] = "shell"
    shell_id: str
    cwd: str
    is_busy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellList:
    type: Literal["shells"] = "shells"
    shells: list[ShellInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellDone:
    """How a command in a shell ended."""

    type: Literal["shell_done"] = "shell_done"
    exit_code: int
    """As a shell reports it: 128 + n for death by signal n."""
    cwd: str
    """Where the shell is now."""
    duration_ms: float
    reason: Literal["exited", "timeout", "idle_timeout", "cancelled", "interrupted", "out_of_memory", "died"] = "exited"
    """`died`: the shell itself was killed or replaced by the command."""
    state_kept: bool = True
    """False when another shell had to take its place, with nothing of its directory, variables and functions."""
    late_dropped_bytes: int = 0
    """What background jobs printed before this command, beyond what is kept of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellError:
    """What a cell raised."""

    name: str
    value: str
    traceback: str
    """Plain text with the cell's own lines and numbers, no colour codes, capped in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellDone:
    """How a cell ended."""

    type: Literal["cell_done"] = "cell_done"
    outcome: Literal["completed", "interrupted", "killed", "died"]
    """`completed`: it ran to its end, with or without `error`. `interrupted`: stopped, kernel and state live on.
    `killed`: it would not stop, so its kernel was replaced. `died`: the kernel died under it and was replaced."""
    reason: Literal["", "timeout", "cancelled", "interrupt", "restart", "closed", "out_of_memory", "signal", "exit"] = (
        ""
    )
    """Why it did not complete."""
    state_kept: bool = True
    exit: int = 0
    """0, 1 after an error, the code of `SystemExit`."""
    error: CellError | None = None
    execution_count: int = 0
    duration_ms: float = 0.0
    hint: str = ""
    """One sentence on what to do next, where the error is a common one (missing module, stdin)."""
    dropped_displays: int = 0
    """Displays over the cap that were left out."""
    background_threads: int = 0
    """Python threads that the cell's kernel still runs beside the main one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInfo:
    """One context."""

    type: Literal["context"] = "context"
    context_id: str
    language: str
    cells: int = 0
    is_busy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextList:
    type: Literal["contexts"] = "contexts"
    contexts: list[ContextInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageList:
    type: Literal["languages"] = "languages"
    languages: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    type: Literal["interrupted"] = "interrupted"
    was_busy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRead:
    type: Literal["file_read"] = "file_read"
    size: int
    """Of the whole file when it was opened."""
    sent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWritten:
    type: Literal["file_written"] = "file_written"
    size: int
    """Bytes of this request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One file as `lstat` sees it."""

    type: Literal["file_info"] = "file_info"
    path: str
    name: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    mode: int
    """Permission bits."""
    mtime: float
    uid: int = 0
    gid: int = 0
    target: str = ""
    """Of a link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    type: Literal["listed"] = "listed"
    count: int
    problems: list[str] = field(default_factory=list[str])
    """Subdirectories that could not be read, in words."""
    has_more: bool = False
    """`limit` cut it off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    type: Literal["packed"] = "packed"
    entries: int
    problems: list[str] = field(default_factory=list[str])
    """What is not in the archive, in words: sockets, devices, files that vanished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    type: Literal["unpacked"] = "unpacked"
    entries: int
    size: int
    """Bytes in files."""
    problems: list[str] = field(default_factory=list[str])
    """What was left out of the archive, in words: devices and pipes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    type: Literal["activity"] = "activity"
    commands: int
    """Commands and cells in progress."""
    background_processes: int
    """Processes left behind by commands and cells, and kernels with threads of their own."""
