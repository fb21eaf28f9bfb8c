"""The messages inside frames: what the host may ask, what the guest answers. Declared here once for both sides.

A request names its operation in `op`; its dataclass is found through `OPERATIONS`. Messages are JSON objects; the host
decodes the guest's strictly (it is hostile), the guest takes the host's word. Optional fields have defaults, so that
a field may be added without a new protocol version.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from cellbox.wire.answers import FAILURE_CODES as FAILURE_CODES  # all of that module is this one's too
from cellbox.wire.answers import (
    Activity,
    CellDone,
    Configured,
    ContextInfo,
    ContextList,
    Done,
    Exited,
    Failure,
    FileInfo,
    FileRead,
    FileWritten,
    Interrupted,
    LanguageList,
    Listed,
    Packed,
    ShellDone,
    ShellInfo,
    ShellList,
    Unpacked,
)
from cellbox.wire.answers import CellError as CellError
from cellbox.wire.file_messages import (
    Entries,
    FileChanges,
    FileOpened,
    ListDirectory,
    MakeDirectory,
    Move,
    Pack,
    ReadFile,
    Remove,
    SetMode,
    Stat,
    Unpack,
    WatchFiles,
    WriteFile,
)
from cellbox.wire.file_messages import FileChange as FileChange

# --------------------------------------------------------------------------------------------- requests (OPEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """First operation after a boot or a restore: turn the waiting guest into this sandbox. Answer: `Configured`.

    The guest mounts the writable disk over the read-only template, sets hostname and limits, and mixes `entropy` into
    every random generator that a checkpoint may have copied. Nothing of the user's runs before.
    """

    op: ClassVar[str] = "configure"
    hostname: str
    memory_mb: int
    disk_mb: int
    tasks: int
    cpus: int = 0
    """How many processors the user's processes may see and use; 0: all that there are."""
    entropy: str
    """64 hex digits, fresh for every sandbox."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """Added to the template's own environment, for commands and kernels alike."""
    start_command: str = ""
    """Shell text of the template that runs beside everything else; its output goes to the sandbox's log."""
    attached: dict[str, str] = field(default_factory=dict[str, str])
    """Directory in the sandbox, absolute → name of the attachment to mount there."""
    read_only: list[str] = field(default_factory=list[str])
    """Those of the directories that can't be written, so that the sandbox's own kernel says so too."""
    files_root: str = ""
    """Where file operations see their `/`, for a machine that does nothing else; empty: the sandbox's own root."""
    ahead: bool = False
    """Nobody has asked for the sandbox yet: get done what its first cell would wait for. `HandOver` follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Give a sandbox that was configured ahead to who asked for it, before anything of theirs runs. Answer: `Done`."""

    op: ClassVar[str] = "hand_over"
    env: dict[str, str] = field(default_factory=dict[str, str])
    """Added to what `Configure` said."""
    start_command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exec:
    """Run a command in a process group of its own. DATA in: its stdin. DATA out: stdout, stderr. Answer: `Exited`.

    The answer follows as soon as the command's own process has ended and what it wrote until then was sent; children
    that it left in the background live on and no longer hold the stream. On timeout or CANCEL the whole process
    group is killed.
    """

    op: ClassVar[str] = "exec"
    command: str
    """Shell text, run by `bash -c`, or `sh -c` where there is no bash. May be megabytes long."""
    cwd: str = ""
    """Absolute; empty for the sandbox's default directory."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    user: str = ""
    """Name or numeric id known in the guest; empty for the sandbox's default user."""
    timeout_seconds: float | None = None
    idle_timeout_seconds: float | None = None
    """End the command when it prints nothing for this long."""
    has_stdin: bool = False
    """False: stdin is empty and at its end at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShell:
    """Start a shell that keeps its state between commands, unless there is one of this id. Answer: `ShellInfo`."""

    op: ClassVar[str] = "shell.open"
    shell_id: str
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict[str, str])
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInShell:
    """Run a command in a shell; those of one shell run one after another in the order of arrival.

    Out: `LateOutput` if background jobs printed since the last one, then DATA: stdout and stderr as one. Answer:
    `ShellDone`. At a time limit or CANCEL the command is interrupted, and killed if that does not end it.
    """

    op: ClassVar[str] = "shell.run"
    shell_id: str
    command: str
    timeout_seconds: float | None = None
    """Counted from when the command starts, not while it queues."""
    idle_timeout_seconds: float | None = None
    terminal: bool = False
    """Its output is a terminal of 120 columns and 40 lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptShell:
    """Interrupt what the shell runs now, if anything. Answer: `Interrupted`."""

    op: ClassVar[str] = "shell.interrupt"
    shell_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseShell:
    """End the shell and everything its commands left running. Answer: `Done`."""

    op: ClassVar[str] = "shell.close"
    shell_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListShells:
    """Answer: `ShellList`."""

    op: ClassVar[str] = "shell.list"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateContext:
    """Start a kernel. Answer: `ContextInfo`."""

    op: ClassVar[str] = "context.create"
    context_id: str
    language: str = "python"
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCell:
    """Run code in a context; cells of one context run one after another in the order of arrival.

    Out: DATA for stdout and stderr and `Display` messages, in order. Answer: `CellDone`. CANCEL interrupts the cell.
    """

    op: ClassVar[str] = "context.run"
    context_id: str
    code: str
    timeout_seconds: float | None = None
    """Counted from when the cell starts, not while it queues."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """For this cell only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptContext:
    """Interrupt what the context runs now, if anything. Answer: `Interrupted`."""

    op: ClassVar[str] = "context.interrupt"
    context_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartContext:
    """Replace the kernel by a fresh one under the same id; a running cell ends as `killed`. Answer: `ContextInfo`."""

    op: ClassVar[str] = "context.restart"
    context_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseContext:
    """End the kernel and its process group. Answer: `Done`."""

    op: ClassVar[str] = "context.close"
    context_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListContexts:
    """Answer: `ContextList`."""

    op: ClassVar[str] = "context.list"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListLanguages:
    """Answer: `LanguageList`."""

    op: ClassVar[str] = "context.languages"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadActivity:
    """Is anything of the user's running that freezing would hold up? Answer: `Activity`."""

    op: ClassVar[str] = "activity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiesce:
    """Make ready for a checkpoint. Answer: `Done`, the last frame that the guest sends until `Continue` or `Renew`.

    Operations in progress go on and wait with their output. The host sends nothing between the two either, so the
    checkpoint holds no part of a frame, in neither direction.
    """

    op: ClassVar[str] = "quiesce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Continue:
    """After a checkpoint, to the guest that goes on: send what has waited. Answer: `Done`."""

    op: ClassVar[str] = "continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """First operation after the restore of a guest that was configured already. Answer: `Configured`.

    Whoever asked for the operations in progress is not at this end of the channel: commands and cells go on, and
    their output is dropped; uploads and cells that had not begun are given up. A clone also gets a name and identity
    of its own, and fresh state for the random generators of every kernel.
    """

    op: ClassVar[str] = "renew"
    hostname: str = ""
    """Of a clone; empty for the same sandbox come back, which keeps its identity and its generators' state."""
    entropy: str = ""
    """64 hex digits, for a clone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Answer: `Done`."""

    op: ClassVar[str] = "ping"


Request = (
    Configure
    | HandOver
    | Exec
    | OpenShell
    | RunInShell
    | InterruptShell
    | CloseShell
    | ListShells
    | CreateContext
    | RunCell
    | InterruptContext
    | RestartContext
    | CloseContext
    | ListContexts
    | ListLanguages
    | ReadFile
    | WriteFile
    | Stat
    | ListDirectory
    | MakeDirectory
    | Move
    | Remove
    | SetMode
    | WatchFiles
    | Pack
    | Unpack
    | ReadActivity
    | Quiesce
    | Continue
    | Renew
    | Ping
)
# ------------------------------------------------------------------------------------- the guest's first word (HELLO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Sent once on stream 0 when the guest is up and its zygote warm; a restored guest does not repeat it."""

    version: int
    guest_version: str
    python: str = ""
    """Version of the template's own Python with a kernel runtime; empty when it has none."""
    kernel_problem: str = ""
    """Why there is no Python kernel, in words for whoever built the template."""


# --------------------------------------------------------------------------------------- events (MESSAGE, guest → host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Display:
    """One rich output of a cell: a figure, a `display()` or the value of the last expression."""

    type: Literal["display"] = "display"
    bundle: dict[str, str]
    """MIME type → data. Images are base64, `application/json` and its kin are JSON text; all values are strings."""
    is_main: bool = False
    """True for the value of the cell's last expression."""
    source: str = "display"
    """`result`, `display`, `figure`: where it came from."""
    omitted: dict[str, int] = field(default_factory=dict[str, int])
    """MIME type → size in bytes, of representations left out because they were over the cap."""
    chart: str = ""
    """JSON text that describes a matplotlib chart (type, title, axes, series); empty when it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateOutput:
    """First event of a cell, when background work printed after the cell before it had ended.

    The first so many bytes of this cell's stdout and stderr are that work's.
    """

    type: Literal["late_output"] = "late_output"
    stdout: int = 0
    stderr: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """On stream 0: a line, or several, that the start command printed or the guest itself has to say."""

    type: Literal["log"] = "log"
    stream: Literal["stdout", "stderr", "system"]
    text: str


Outcome = (
    Failure | Done | Configured | Exited | CellDone | ContextInfo | ContextList | LanguageList | Interrupted | FileRead
    | FileWritten | FileInfo | Listed | Packed | ShellDone | ShellInfo | ShellList | Unpacked | Activity
)  # fmt: skip
Event = Display | LateOutput | Entries | FileOpened | FileChanges | LogLine
ANSWERS: dict[type[Request], type[Outcome]] = {
    Configure: Configured,
    HandOver: Done,
    Exec: Exited,
    OpenShell: ShellInfo,
    RunInShell: ShellDone,
    InterruptShell: Interrupted,
    CloseShell: Done,
    ListShells: ShellList,
    CreateContext: ContextInfo,
    RunCell: CellDone,
    InterruptContext: Interrupted,
    RestartContext: ContextInfo,
    CloseContext: Done,
    ListContexts: ContextList,
    ListLanguages: LanguageList,
    ReadFile: FileRead,
    WriteFile: FileWritten,
    Stat: FileInfo,
    ListDirectory: Listed,
    MakeDirectory: Done,
    Move: Done,
    Remove: Done,
    SetMode: Done,
    WatchFiles: Done,
    Pack: Packed,
    Unpack: Unpacked,
    ReadActivity: Activity,
    Quiesce: Done,
    Continue: Done,
    Renew: Configured,
    Ping: Done,
}
"""What each request is answered with when it is not a `Failure`."""
OPERATIONS: dict[str, type[Request]] = {request.op: request for request in ANSWERS}
"""By the `op` field."""
EVENTS: dict[str, type[Event]] = {
    "display": Display,
    "late_output": LateOutput,
    "entries": Entries,
    "file_opened": FileOpened,
    "file_changes": FileChanges,
    "log": LogLine,
}
"""By the `type` field."""


def to_fields(message: Any) -> dict[str, Any]:
    """Return a message as plain JSON values; a request gains its `op`."""
    fields = dataclasses.asdict(message)
    if isinstance(message, tuple(OPERATIONS.values())):
        fields["op"] = message.op
    return fields


def request_from_fields(fields: dict[str, Any]) -> Request:
    """Build the request a host sent. Raises `ValueError` for an unknown operation or wrong field names."""
    operation = OPERATIONS.get(fields.pop("op", ""))
    if operation is None:
        raise ValueError("unknown operation")
    try:
        return operation(**fields)
    except TypeError as error:
        raise ValueError(str(error)) from None
