"""Access to one sandbox's guest: who uses it now, when it may be frozen, and what to say once it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

from cellbox import errors
from cellbox.control.link import GuestLink
from cellbox.engines.base import EngineFault, Machine
from cellbox.wire import messages

FREEZE_AFTER_SECONDS = 2.0
"""Of silence. Long enough that a conversation is not slowed by thaws (about 1 ms each), short enough that idle
sandboxes cost no CPU: an idle sentry of the older runsc release takes 2.5 to 3 % of a core."""
_ACTIVITY_TIMEOUT_SECONDS = 5.0


class Guest:
    """One machine and its link. Everything that talks to the guest does it inside `use()`."""

    def __init__(self, machine: Machine, link: GuestLink, *, can_freeze: bool) -> None:
        self.machine = machine
        self.link = link
        self._last_used = time.monotonic()
        self._can_freeze = can_freeze
        self._users = 0
        self._is_frozen = False
        self._gate = asyncio.Lock()
        self._freezing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gone: errors.APIError | None = None

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncGenerator[GuestLink]:
        """Hold the guest awake and yield its link. Raises the reason when the sandbox is gone."""
        if self._gone is not None:
            raise self._gone
        self._users += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            if self._is_frozen or self._freezing is not None:
                await self._thaw()
            yield self.link
        finally:
            self._users -= 1
            self._last_used = time.monotonic()
            if not self._users:
                self._freeze_later()

    def end(self, reason: errors.APIError) -> None:
        """The machine is gone or going: every call in progress and to come ends with `reason`. Idempotent."""
        if self._gone is not None:
            return
        self._gone = reason
        if self._timer is not None:
            self._timer.cancel()
        if self._freezing is not None:
            self._freezing.cancel()
        self.link.close(reason)

    @property
    def idle_seconds(self) -> float:
        """Since the last call ended; zero while one is in progress."""
        return 0.0 if self._users else time.monotonic() - self._last_used

    def _freeze_later(self) -> None:
        if self._can_freeze and self._gone is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(FREEZE_AFTER_SECONDS, self._begin_freezing)

    def _begin_freezing(self) -> None:
        self._timer = None
        if not self._users and self._freezing is None:
            self._freezing = asyncio.get_running_loop().create_task(self._freeze())

    async def _freeze(self) -> None:
        """Freeze unless something of the user's would be held up; look again after the next pause otherwise."""
        try:
            async with self._gate:
                activity = await self.link.ask(
                    messages.ReadActivity(), messages.Activity, timeout_seconds=_ACTIVITY_TIMEOUT_SECONDS
                )
                if self._users or activity.commands or activity.background_processes:
                    return
                self._is_frozen = True
                await self.machine.pause()
        except EngineFault:
            self._can_freeze = False
            self._is_frozen = False
        except errors.APIError:
            return  # gone, or too busy to answer: either way nothing to freeze
        finally:
            self._freezing = None
            if not self._is_frozen and not self._users:
                self._freeze_later()

    async def _thaw(self) -> None:
        async with self._gate:
            if self._is_frozen:
                await self.machine.resume()
                self._is_frozen = False
