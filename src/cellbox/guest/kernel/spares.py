"""Python kernels forked ahead of need: a fork takes 100 ms and more under gVisor, and adopting one takes 5."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from cellbox.guest.kernel.launcher import Kernel, KernelError, Launcher


class Spares:
    """Kernels that wait for a context. A fork that fails is found out by whoever would take it, and then left out."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._forks: list[asyncio.Task[Kernel]] = []

    @property
    def count(self) -> int:
        """How many there are or will be soon."""
        return len(self._forks)

    def keep(self, count: int) -> Spares:
        """Begin to fork until there are so many. Returns itself."""
        loop = asyncio.get_running_loop()
        while len(self._forks) < count:
            self._forks.append(loop.create_task(self._launcher.fork()))
        return self

    async def wait(self) -> None:
        """Wait until those that were begun are there."""
        if self._forks:
            await asyncio.wait(self._forks)

    def ready(self) -> list[Kernel]:
        """Those that wait already. One that is being forked mixes fresh randomness in at its start."""
        done = [fork for fork in self._forks if fork.done() and not fork.cancelled()]
        return [fork.result() for fork in done if fork.exception() is None]

    async def warm_up(self) -> None:
        """Let those that are there go through a cell's motions."""
        for fork in self._forks:
            with suppress(KernelError):  # who takes it will find out
                await (await fork).warm_up()

    async def take(self) -> Kernel | None:
        """Return a kernel, waiting for one that is being forked; None when there is none."""
        while self._forks:
            try:
                kernel = await self._forks.pop(0)
            except KernelError:
                continue
            if not kernel.ended.done() and not kernel.link.is_closed:
                return kernel
            kernel.link.close()
        return None

    async def end(self) -> None:
        """End them all."""
        while (kernel := await self.take()) is not None:
            await kernel.kill()
            kernel.link.close()
