"""Shells: bash processes that keep their state from one command to the next."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from cellbox.protocol.commands import TimeoutSeconds
from cellbox.protocol.values import RequestBody, Value


class CreateShell(RequestBody):
    """Body of `create_shell`."""

    cwd: str | None = None
    """Absolute. Default `/workspace`."""
    env: dict[str, str] = {}
    user: str | None = None
    """Name or number of a user in the sandbox. Default root."""


class ShellInfo(Value):
    """One shell."""

    id: str
    cwd: str
    """Its working directory after the last command."""
    is_busy: bool = False


class RunInShell(RequestBody):
    """Body of `run_in_shell` and `stream_in_shell`."""

    cmd: Annotated[str, Meta(min_length=1)]
    """Shell text, of megabytes if need be. Its standard input is empty."""
    timeout_seconds: TimeoutSeconds | None = None
    """Default 60, counted from when the command starts. At the deadline it is interrupted, and killed if need be."""
    idle_timeout_seconds: TimeoutSeconds | None = None
    """End it when it prints nothing for this long."""
    terminal: bool = False
    """Let it print to a terminal of 120 columns and 40 lines instead of a pipe."""


ShellReason = Literal["exited", "timeout", "idle_timeout", "cancelled", "interrupted", "out_of_memory", "died"]


class ShellResult(Value):
    """What came of a command. A non-zero exit and a time limit are results, not errors."""

    output: str
    """stdout and stderr in the order they were written, decoded as UTF-8 with bad bytes replaced. Long output keeps its
    head and tail, with a line that says what was cut."""
    exit_code: int
    """128 + n for death by signal n."""
    cwd: str
    """Where the shell is now."""
    duration_ms: float = 0
    reason: ShellReason = "exited"
    """`died`: the command killed or replaced the shell itself."""
    state_kept: bool = True
    """False when another shell had to take its place: directory, variables and functions are gone."""
    dropped_bytes: int = 0
    """Of `output`."""
    late_bytes: int = 0
    """So many bytes at the beginning of the output are from background jobs, printed before this command began."""
    late_dropped_bytes: int = 0
    """What background jobs printed before that, and is lost."""


class ShellOutput(Value, tag_field="event", tag="output"):
    """Output as it is printed; a character is never split over two chunks."""

    chunk: str
    late: bool = False
    """A background job printed it before the command began."""


class ShellCommandEnded(Value, tag_field="event", tag="end"):
    """Last event of a command."""

    exit_code: int
    cwd: str
    duration_ms: float = 0
    reason: ShellReason = "exited"
    state_kept: bool = True
    late_dropped_bytes: int = 0


ShellEvent = ShellOutput | ShellCommandEnded
