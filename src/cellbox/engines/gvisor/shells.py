"""Keeps a few shells ready: machines that were created before anyone asked, so that a start has only to restore.

`runsc create` is 65-90 of the 190 ms that a start takes. It needs no image, but nearly everything of the spec: the
sentry learns the guest's memory and processors from its cgroups as it starts, and the gofer has the root filesystem
open. So a shell fits the specs that differ from its own in the id and the attachments alone, its limits are set once
when it is made, and the shapes of the last few starts are what is kept.

A shell takes 12.5 MB of host memory. It is frozen while it waits: a sentry of 2024 polls and would use 2.5-3 % of a
core, for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Generator
from dataclasses import replace

from cellbox.engines.base import EngineFault, MachineSpec
from cellbox.engines.gvisor.starts import Shell, Starter
from cellbox.engines.gvisor.threads import in_thread

QUIET_S = 0.15
"""Shells are made so long after the end of the last start. The guest is configured in that time and runs its first
cell (30-120 ms), and a `runsc create` beside it on two cores would be felt."""

_LOOK_S = 10.0
"""How often shells are looked at while nothing is started, for dead ones and for templates that were removed."""


class Shells:
    """The shells of one starter. Those of shapes asked for lately are kept, `count` at most."""

    def __init__(self, starter: Starter, *, count: int) -> None:
        self._starter = starter
        self._count = count
        self._ready: list[Shell] = []
        self._recent: deque[MachineSpec] = deque(maxlen=count)
        self._making: MachineSpec | None = None
        self._waiter: asyncio.Future[Shell | None] | None = None
        """A start that waits for the shell that is being made."""
        self._wake = asyncio.Event()
        self._starts = 0
        self._last_start = 0.0
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="cellbox shells")

    @property
    def ready(self) -> int:
        """How many wait to be taken."""
        return len(self._ready)

    async def aclose(self) -> None:
        """Remove every shell. What was taken belongs to others."""
        self._keeper.cancel()
        await asyncio.wait([self._keeper])
        await self._discard(self._ready)

    @contextlib.contextmanager
    def starting(self, spec: MachineSpec) -> Generator[None]:
        """See `ShellSource`."""
        if not (spec.binds or spec.writable_root):  # else a template being built: the next one has other directories
            self._recent.append(_shape(spec))
        self._starts += 1
        try:
            yield
        finally:
            self._starts -= 1
            self._last_start = time.monotonic()
            self._wake.set()

    async def take(self, spec: MachineSpec) -> Shell | None:
        """See `ShellSource`. Waits for one that is being made: that is never slower than to begin another."""
        shape = _shape(spec)
        while (shell := self._pop(shape)) is not None:
            if await self._thawed(shell):
                return shell
        if self._making == shape and self._waiter is None:
            return await self._await_made()
        return None

    def _pop(self, shape: MachineSpec) -> Shell | None:
        found = next((shell for shell in self._ready if shell.spec == shape), None)
        if found is not None:
            self._ready.remove(found)
        return found

    async def _thawed(self, shell: Shell) -> bool:
        """Wake a shell that was taken out; `False` if it was of no use and is gone."""
        fit = False
        try:
            if shell.is_fit() and shell.traces.cgroup is not None:
                with contextlib.suppress(OSError):
                    await in_thread(shell.traces.cgroup.thaw)
                    fit = shell.is_fit()
        finally:
            if not fit:
                await self._discard([shell])
        return fit

    async def _await_made(self) -> Shell | None:
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.shield(waiter)
        except asyncio.CancelledError:
            if waiter.done() and (shell := waiter.result()) is not None:
                await self._discard([shell])
            raise
        finally:
            if self._waiter is waiter:
                self._waiter = None

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._wake.wait()
            self._wake.clear()
            if not await self._is_quiet():
                continue
            await self._discard([shell for shell in self._ready if not shell.is_fit()])
            while not self._starts and (shape := self._next()) is not None:
                try:
                    await self._make(shape)
                except (EngineFault, OSError):
                    break  # a start of that shape will say what is wrong, to someone who wants to know

    async def _is_quiet(self) -> bool:
        """Wait out the pause after the last start; `False` if another one goes on, whose end wakes the keeper again."""
        # A loop, since a timer may fire a little early: nobody would wake the keeper a second time.
        while not self._starts and (left := self._last_start + QUIET_S - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left)
        return not self._starts

    def _next(self) -> MachineSpec | None:
        """The shape that is missing most: one for each of the last starts, and the rest of the latest."""
        if not self._recent:
            return None
        latest = self._recent[-1]
        wanted = [*self._recent, *[latest] * (self._count - len(self._recent))]
        for shell in self._ready:
            if shell.spec in wanted:
                wanted.remove(shell.spec)
        return wanted[-1] if wanted else None

    async def _make(self, shape: MachineSpec) -> None:
        self._making = shape
        shell: Shell | None = None
        try:
            await self._make_room()
            shell = await self._starter.make_shell(shape)
            self._making = None
            if self._hand_over(shell):
                return
            assert shell.traces.cgroup is not None
            await in_thread(shell.traces.cgroup.freeze)
            self._ready.append(shell)
        except BaseException:
            self._making = None
            self._hand_over(None)
            if shell is not None:
                await self._discard([shell])
            raise

    def _hand_over(self, shell: Shell | None) -> bool:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return False
        waiter.set_result(shell)
        return True

    async def _make_room(self) -> None:
        """Remove the longest unasked-for shell when there are as many as may be."""
        if len(self._ready) >= self._count:
            spare = next((shell for shell in self._ready if shell.spec not in self._recent), self._ready[0])
            await self._discard([spare])

    async def _discard(self, shells: list[Shell]) -> None:
        doomed = list(shells)
        self._ready = [shell for shell in self._ready if shell not in doomed]
        # Shielded: a caller that is cancelled meanwhile must not leave half of one.
        await asyncio.shield(asyncio.gather(*(self._starter.discard(shell) for shell in doomed)))


def _shape(spec: MachineSpec) -> MachineSpec:
    return replace(spec, machine_id="", env=dict(spec.env), attachments=())
