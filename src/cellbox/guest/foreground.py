"""What somebody waits for: commands and what shells run, as the memory watcher and the host's idle check see it."""

from __future__ import annotations

from collections.abc import Mapping

from cellbox.guest.commands import Commands
from cellbox.guest.processes import Process
from cellbox.guest.shells import Shells


class Foreground:
    """Commands and shells together."""

    def __init__(self, commands: Commands, shells: Shells) -> None:
        self._commands = commands
        self._shells = shells

    @property
    def running(self) -> int:
        """How many commands are in progress."""
        return self._commands.running + self._shells.running

    def members(self, table: Mapping[int, Process]) -> set[int]:
        """Return the pids in `table` that are no background work: commands in progress, and shells themselves."""
        return self._commands.members(table) | self._shells.members(table)

    def waiting(self) -> set[int]:
        """Return the pids of what only waits to be asked for something. Cheap: nothing is read."""
        return self._shells.pids()

    def note_out_of_memory(self, pid: int, table: Mapping[int, Process]) -> bool:
        """End the command in progress that `pid` belongs to. False when there is none."""
        return self._commands.note_out_of_memory(pid, table) or self._shells.note_out_of_memory(pid, table)
