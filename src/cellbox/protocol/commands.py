"""Commands: one-shot shell text in a sandbox."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from cellbox.protocol.values import RequestBody, Value

DEFAULT_COMMAND_TIMEOUT_SECONDS = 60.0
MAX_TIMEOUT_SECONDS = 24 * 3600.0
TimeoutSeconds = Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_SECONDS)]


class RunCommand(RequestBody):
    """Body of `run_command` and `stream_command`."""

    cmd: Annotated[str, Meta(min_length=1)]
    """Shell text, run by `bash -c`, or `sh -c` where there is no bash."""
    timeout_seconds: TimeoutSeconds | None = None
    """Default 60. At the deadline the command and everything it started is killed."""
    idle_timeout_seconds: TimeoutSeconds | None = None
    """Kill it when it prints nothing for this long."""
    env: dict[str, str] = {}
    cwd: str | None = None
    """Absolute. Default `/workspace`."""
    user: str | None = None
    """Name or number of a user in the sandbox. Default root."""
    stdin: str | None = None
    """Text for its standard input, which is otherwise empty."""


class CommandMessage(RunCommand):
    """What a client of `run_commands` sends: a command to start, or with `cancel` one to end."""

    cmd: str = ""
    id: Annotated[str, Meta(min_length=1, max_length=128)] | int
    """The caller's name for the command; free again once its end was told."""
    cancel: bool = False
    """Kill the command of this id."""


CommandReason = Literal["exited", "timeout", "idle_timeout", "cancelled", "out_of_memory"]


class CommandResult(Value):
    """What came of a command. A non-zero exit is a result, not an error."""

    stdout: str
    """Decoded as UTF-8, bad bytes replaced. Long output keeps its head and tail, with a line that says what was cut."""
    stderr: str
    exit_code: int
    """128 + n for death by signal n."""
    duration_ms: float = 0
    reason: CommandReason = "exited"
    stdout_dropped_bytes: int = 0
    stderr_dropped_bytes: int = 0
    survivors: int = 0
    """Processes it left running in the background."""


class StdoutChunk(Value, tag_field="event", tag="stdout"):
    """Bytes of standard output, as text; a character is never split over two chunks."""

    chunk: str
    late: bool = False
    """In a cell: background work printed it before the cell began."""


class StderrChunk(Value, tag_field="event", tag="stderr"):
    """Bytes of standard error, as text; a character is never split over two chunks."""

    chunk: str
    late: bool = False


class CommandExited(Value, tag_field="event", tag="exit"):
    """The last event of a command that ended by itself."""

    exit_code: int
    duration_ms: float = 0
    reason: CommandReason = "exited"
    survivors: int = 0


class CommandOutput(Value):
    """From `run_commands`: what a command printed; a character is never split over two messages."""

    id: str | int
    stream: Literal["stdout", "stderr"]
    data: str


class CommandEnd(Value):
    """From `run_commands`: a command's last message."""

    id: str | int
    exit: int
    """128 + n for death by signal n."""
    duration_ms: float = 0
    reason: CommandReason = "exited"
    survivors: int = 0


class CommandProblem(Value):
    """From `run_commands`: a command's last message when it did not run, or did not run to its end."""

    id: str | int
    error: str
    code: str = ""


CommandEvent = StdoutChunk | StderrChunk | CommandExited
