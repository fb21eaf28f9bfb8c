"""Everything of one machine on the host, and its removal: after a kill, a death, a failed start, or a lost daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from pathlib import Path

from cellbox.engines import mounts
from cellbox.engines.base import Usage
from cellbox.engines.gvisor import attachments
from cellbox.engines.gvisor.cgroups import Cgroup, CgroupTree
from cellbox.engines.gvisor.layout import Layout, is_machine_id
from cellbox.engines.gvisor.processes import (
    Process,
    all_pids,
    children,
    read_arguments,
    read_stat,
    read_use,
    reap_orphans,
    reap_strays,
)
from cellbox.engines.gvisor.threads import in_background, in_thread

_REMOVAL_DEADLINE_S = 10.0
"""How long the kernel may take to let a killed machine's processes go. Measured: 4-20 ms; a 4 GB guest: 0.3 s."""

_MEMORY_FILE = "/memfd:runsc-memory"


class Traces:
    """What there is of a machine. Fill in what is known; `remove` finds the rest."""

    def __init__(self, layout: Layout, machine_id: str, cgroup: Cgroup | None) -> None:
        self._layout = layout
        self.machine_id = machine_id
        """As the host knows it."""
        self._link: Path | None = None
        self.cgroup = cgroup
        self.sentry: Process | None = None
        self.gofer: Process | None = None
        self._others: list[Process] = []
        self._sessions: set[int] = set()
        self._memory = -1

    def name(self, machine_id: str) -> None:
        """Let another name lead here, which is removed with the rest. Raises `FileExistsError` if it is taken."""
        link = self._layout.bundle(machine_id)
        link.symlink_to(self.machine_id)
        self._link = link

    def is_named(self, machine_id: str) -> None:
        """Tell that `machine_id` leads here since an earlier process named it so."""
        self._link = self._layout.bundle(machine_id)

    def hold(self, sentry: int, gofer: int) -> bool:
        """Hold the two processes that runsc named; `False` if they are not what it says."""
        self.sentry = Process.open_if(sentry, self._is_ours)
        self.gofer = Process.open_if(gofer, self._is_ours)
        self._learn_sessions()
        return self.sentry is not None and self.gofer is not None

    def _is_ours(self, pid: int) -> bool:
        return machine_of(read_arguments(pid), self._layout) == self.machine_id

    def _learn_sessions(self) -> None:
        """Stubs have no command line to know them by, but they share the session of the sentry's first one."""
        for process in (self.sentry, self.gofer, *self._others):
            if process is None:
                continue
            self._sessions.add(process.pid)
            for pid in children(process.pid):
                if (stat := read_stat(pid)) is not None and stat.parent == process.pid:
                    self._sessions.add(stat.session)

    def keep_memory(self) -> None:
        """Hold the file that is the guest's memory until everything else is gone.

        Giving its pages back is the larger half of what a killed machine's end takes (25 of 45 ms for 170 MB). The last
        process that has the file open does it as it ends, and everybody waits for that; so let it be this one, later.
        """
        if self.sentry is None or self._memory >= 0:
            return
        descriptors = Path(f"/proc/{self.sentry.pid}/fd")
        with contextlib.suppress(OSError):  # it has ended already
            for entry in descriptors.iterdir():
                if str(entry.readlink()).startswith(_MEMORY_FILE):
                    self._memory = os.open(entry, os.O_RDONLY | os.O_CLOEXEC)
                    return

    def kill(self) -> None:
        """Send SIGKILL to what is held, at once."""
        for process in (self.sentry, self.gofer, *self._others):
            if process is not None:
                process.kill()

    def measure(self) -> Usage:
        """Use of a machine without cgroups: of its sentry and gofer, without the stubs (which share its memory)."""
        memory, cpu, count = 0, 0.0, 0
        for process in (self.sentry, self.gofer):
            if process is not None and (use := read_use(process.pid)) is not None:
                memory, cpu, count = memory + use.resident_bytes, cpu + use.cpu_seconds, count + 1
        return Usage(memory_bytes=memory, memory_peak_bytes=memory, cpu_seconds=cpu, processes=count)

    async def remove(self, *, search: bool) -> int | None:
        """Kill what lives, reap it, and remove cgroups and files.

        Args:
            search: look through all processes of the host for some that runsc did not tell of, as after a start that
                broke off (4 ms with 200 processes).

        Returns:
            The sentry's exit status, if it was ours to collect.
        """
        if search:
            self._search()
        self.kill()
        if self.cgroup is not None:
            await in_thread(self.cgroup.kill)
        held = [process for process in (self.sentry, self.gofer, *self._others) if process is not None]
        if held:
            waits = [asyncio.ensure_future(process.wait()) for process in held]
            _, late = await asyncio.wait(waits, timeout=_REMOVAL_DEADLINE_S)
            for wait in late:
                wait.cancel()
        status = self.sentry.reap() if self.sentry is not None else None
        for process in held:
            process.reap()
            process.close()
        await self._remove_rest()
        return status

    def _search(self) -> None:
        known = {process.pid for process in (self.sentry, self.gofer) if process is not None}
        for pid in all_pids():
            if pid not in known and (process := Process.open_if(pid, self._is_ours)) is not None:
                self._others.append(process)
        self._learn_sessions()

    async def _remove_rest(self) -> None:
        end = time.monotonic() + _REMOVAL_DEADLINE_S
        quiet = 0
        while quiet < 2 and time.monotonic() < end:  # the kernel's list of children may miss one while others leave it
            alive = reap_orphans(self._sessions)
            # Stubs get their death signal from the sentry's end and leave the cgroup some milliseconds later.
            gone = self.cgroup is None or await in_thread(self.cgroup.remove)
            if gone and not alive:
                quiet += 1
                continue
            if self.cgroup is not None and not gone:
                await in_thread(self.cgroup.kill)
            await asyncio.sleep(0.001)
        reap_strays()
        await in_thread(attachments.remove, self._layout, self.machine_id)
        for path in self._layout.files(self.machine_id):
            path.unlink(missing_ok=True)
        if self._link is not None:
            self._link.unlink(missing_ok=True)
        shutil.rmtree(self._layout.bundle(self.machine_id), ignore_errors=True)
        if self._memory >= 0:
            memory, self._memory = self._memory, -1
            in_background(os.close, memory)


def machine_of(arguments: tuple[str, ...], layout: Layout) -> str | None:
    """The machine a process works for, if it is a runsc process with exactly our `--root`.

    The directory belongs to this installation alone: a process named runsc that does not carry it is a stranger's.
    """
    if not arguments or not arguments[0].rpartition("/")[2].startswith("runsc"):
        return None
    if f"--root={layout.root}" not in arguments:
        return None
    for argument in arguments:  # sentry and gofer name their bundle, the command names the machine at its end
        if argument.startswith(f"--bundle={layout.machines}/"):
            return _checked(argument.rpartition("/")[2])
    return _checked(arguments[-1])


def _checked(name: str) -> str | None:
    """A name found on the host is used to remove things: only what could be a machine's counts as one.

    A process that is just dying can show a command line that is cut off.
    """
    return name if is_machine_id(name) else None


def machine_ids(layout: Layout, tree: CgroupTree) -> set[str]:
    """Machines of this installation that left anything: a file, a cgroup or a process."""
    found = layout.machine_ids() | tree.machine_ids()
    for pid in all_pids():
        if (machine_id := machine_of(read_arguments(pid), layout)) is not None:
            found.add(machine_id)
    return {name for name in found if is_machine_id(name)}


def unmount_below(root: Path) -> None:
    """Give back mounts that newer releases leave under their root (`null-netns`)."""
    with contextlib.suppress(OSError):
        for place in mounts.mounted_below(root):
            mounts.unmount(place)
