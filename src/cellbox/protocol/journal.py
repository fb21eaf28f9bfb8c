"""The journal: every cell and command of a sandbox, with what came of it."""

from __future__ import annotations

from datetime import datetime

from cellbox.protocol.commands import CommandResult
from cellbox.protocol.contexts import Execution
from cellbox.protocol.shells import ShellResult
from cellbox.protocol.values import Value

MAX_PAGE_ENTRIES = 1000


class CellEntry(Value, tag_field="kind", tag="cell"):
    """One cell that was run."""

    number: int
    """Counts all entries of the sandbox, from 1; a gap is what the journal had no room for."""
    started_at: datetime
    context_id: str
    language: str
    code: str
    execution: Execution | None = None
    """What came of it; None when nobody waited for its end."""
    omitted_bytes: int = 0
    """So much of code and outputs was left out, since it was over the journal's limits."""


class CommandEntry(Value, tag_field="kind", tag="command"):
    """One command that was run. The values of its environment variables are not kept."""

    number: int
    started_at: datetime
    cmd: str
    cwd: str = ""
    user: str = ""
    env_names: list[str] = []
    stdin: str | None = None
    result: CommandResult | None = None
    omitted_bytes: int = 0


class ShellEntry(Value, tag_field="kind", tag="shell"):
    """One command that was run in a shell, where it found what earlier ones left."""

    number: int
    started_at: datetime
    shell_id: str
    cmd: str
    result: ShellResult | None = None
    omitted_bytes: int = 0


JournalEntry = CellEntry | CommandEntry | ShellEntry


class Journal(Value):
    """A part of a sandbox's journal."""

    sandbox_id: str
    template: str = ""
    created_at: datetime | None = None
    entries: list[JournalEntry] = []
    missing: int = 0
    """So many entries of the sandbox were not kept, since its journal was full."""
    next_after: int | None = None
    """Pass it as `after` to get what follows; None when that is all there is now."""
