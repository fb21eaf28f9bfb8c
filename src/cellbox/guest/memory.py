"""Keeps the user's processes within the sandbox's memory and task limits.

gVisor keeps all memory of a sandbox, its disk included, in one file of the host, and the host's limit on that ends the
whole sandbox. So the guest looks itself, often enough that nobody can get past it in between, and not at all while
nothing of the user's runs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Protocol

from cellbox.guest import processes
from cellbox.guest.foreground import Foreground

_GROWTH_BYTES_PER_SECOND = 2 * 1024**3
"""How fast memory can be filled: 1 GB/s was measured under gVisor on two cores; twice that is taken."""
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.01, 0.25
_CROWD_SECONDS = 0.15
"""Between two looks at a crowd."""
_LATE_SECONDS = 0.2
"""So much too late we wake up only when a crowd has the processor."""
_SURGE = 12
"""So many new processes between two looks are a fork bomb's beginning; a second later it would not let us look."""
_TURNS = 20
_CROWDED_SHARE, _ROOMY_SHARE = 0.8, 0.5
"""Of the task limit: from where on a sandbox is crowded, and until where. A bomb's numbers go up and down."""
_CROWDED_SECONDS = 0.4
"""How long a sandbox may stay crowded: real work rarely is at all, a fork bomb always."""
_GONE_SECONDS = 2.0
_ENGINE_BYTES = 64 * 1024**2
"""What gVisor's own heap may grow to at nobody's expense. An idle sandbox's is 9 MB."""
_SWARM_SHARE = 0.25
"""When even the largest process has less of the memory than this, many small ones have used it up."""


class Kernels(Protocol):
    """What the watcher needs of `contexts`."""

    def activity(self) -> tuple[int, int]: ...

    def note_out_of_memory(self, pid: int) -> object: ...


class Watcher:
    """Watches while something runs. Limits are enforced by killing, the largest first; the guest itself is spared."""

    def __init__(
        self, table: processes.Processes, foreground: Foreground, kernels: Kernels, log: Callable[[str], None]
    ) -> None:
        self._processes = table
        self._foreground = foreground
        self._kernels = kernels
        self._log = log
        self._limit = 0
        self._tasks = 0
        self._own = 0
        self._engine = _ENGINE_BYTES
        self._free = 0
        self._count = 0
        self._disk = -1
        self._crowded_since: float | None = None
        self._task: asyncio.Task[None] | None = None

    def configure(self, memory_mb: int, tasks: int, disk: int) -> None:
        """Set the limits. What is in use now is the guest's own and not charged. `disk` is a descriptor in the disk."""
        self._disk = disk
        self._limit, self._tasks = memory_mb << 20, tasks
        self._own = self._used()
        self._free = self._limit

    def free_bytes(self) -> int | None:
        """Return how much memory is left, negative when too much is in use; None where there is no limit."""
        return self._limit + self._own - self._used() if self._limit else None

    def wake(self) -> None:
        """Watch until nothing runs any more. To be called whenever something of the user's starts."""
        if self._limit and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        # Sleeping first costs a short command nothing: nobody can have got past the limit since it was last looked at.
        while True:
            longest = _CROWD_SECONDS if self._processes.is_crowd else _LONGEST_SECONDS
            pause = min(max(self._free / _GROWTH_BYTES_PER_SECOND, _SHORTEST_SECONDS), longest)
            due = time.monotonic() + pause
            await asyncio.sleep(pause)
            is_pressed = time.monotonic() - due > _LATE_SECONDS
            if not (is_pressed and self._processes.is_crowd):
                before = self._count
                self._count = self._processes.count()
                is_pressed = is_pressed or self._count - before >= _SURGE
            with self._processes.standstill() if is_pressed else nullcontext():
                if not await self._look():
                    return
                # While they stand still the loop gets through what the host asked for, however many there are.
                for _ in range(_TURNS if is_pressed else 0):
                    await asyncio.sleep(0)

    async def _look(self) -> bool:
        """Look once and enforce what is exceeded. False when nothing of the user's runs."""
        count = self._count = self._processes.count()
        self._free = self._limit + self._own - self._used()
        if (
            not self._foreground.running
            and self._kernels.activity() == (0, 0)
            and not self._processes.background(self._foreground.waiting())
        ):
            self._forgive_engine()
            self._free = self._limit + self._own - self._used()
            if self._free >= 0:
                return False
        if self._free < 0:
            await self._end_largest(-self._free)
            self._forgive_engine()
        elif self._is_crowded(count):
            await self._end_swarm(f"too many processes: {count} of {self._tasks}", lambda _: 1)
        return True

    def _forgive_engine(self) -> None:
        """Charge nobody with what the engine holds now: garbage, which it keeps until it feels like collecting it."""
        self._engine = max(_ENGINE_BYTES, self._kilobytes("sentry-meminfo", b"HeapAlloc:") * 1024)

    def _used(self) -> int:
        """Return the memory in use, the disk's left out. Not the sum over processes: they share pages after a fork.

        What the engine itself holds counts from where it exceeds its allowance, for it grows with what the user makes:
        2.4 KB for each file, and no other limit stops a million of them.
        """
        disk = os.fstatvfs(self._disk)
        anonymous = self._kilobytes("meminfo", b"AnonPages:") * 1024
        engine = max(self._kilobytes("sentry-meminfo", b"HeapAlloc:") * 1024 - self._engine, 0)
        return anonymous + engine - (disk.f_blocks - disk.f_bfree) * disk.f_frsize

    def _kilobytes(self, file: str, field: bytes) -> int:
        for line in self._processes.file(file).splitlines():
            if line.startswith(field):
                return int(line.split()[1])
        return 0

    async def _end_largest(self, excess: int) -> None:
        over = f"out of memory: {excess >> 20} MB over the limit of {self._limit >> 20} MB"
        table = self._processes.snapshot()
        if not table:
            return
        victim = max(table.values(), key=lambda process: process.resident_bytes)
        if victim.resident_bytes < self._limit * _SWARM_SHARE:
            await self._end_swarm(over, lambda process: process.resident_bytes)
            return
        self._log(f"{over}; killing process {victim.name!r}, which uses {victim.resident_bytes >> 20} MB")
        if not self._foreground.note_out_of_memory(victim.pid, table):
            if self._processes.is_kernel(victim):
                self._kernels.note_out_of_memory(victim.pid)
            elif victim.pid == victim.group:
                processes.send(victim.pid, signal.SIGKILL, group=True)
            processes.send(victim.pid, signal.SIGKILL)
        await self._wait_until_gone(victim.pid)

    async def _wait_until_gone(self, pid: int) -> None:
        for _ in range(round(_GONE_SECONDS / _SHORTEST_SECONDS)):
            if not self._processes.is_alive(pid):
                return
            await asyncio.sleep(_SHORTEST_SECONDS)

    async def _end_swarm(self, why: str, weight: Callable[[processes.Process], int]) -> None:
        """Kill the session that weighs most."""
        table = self._processes.snapshot()
        sessions: Counter[int] = Counter()
        for process in table.values():
            sessions[process.session] += weight(process)
        if not sessions:
            return
        session = sessions.most_common(1)[0][0]
        size = sum(process.session == session for process in table.values())
        self._log(f"{why}; killing session {session} with its {size} processes")
        self._kernels.note_out_of_memory(session)
        if not self._foreground.note_out_of_memory(session, table):
            await self._processes.kill_members(session, self._marker(session, table))
        await self._wait_until_gone(session)
        self._crowded_since = None

    def _is_crowded(self, count: int) -> bool:
        """Tell whether there are more processes than the sandbox may have, or as many for a while.

        RLIMIT_NPROC holds for each user id apart, and who is at that limit can't start anything else.
        """
        if count < self._tasks * _ROOMY_SHARE:
            self._crowded_since = None
        elif count >= self._tasks * _CROWDED_SHARE and self._crowded_since is None:
            self._crowded_since = time.monotonic()
        since = self._crowded_since
        return count > self._tasks or (since is not None and time.monotonic() - since >= _CROWDED_SECONDS)

    def _marker(self, session: int, table: Mapping[int, processes.Process]) -> bytes:
        markers = (self._processes.marker_of(pid) for pid, process in table.items() if process.session == session)
        return next((marker for marker in markers if marker), b"")
