"""Access to one sandbox's guest: who uses it now, when it may be frozen, and what to say once it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

from cellbox import errors
from cellbox.control.link import GuestLink
from cellbox.engines.base import EngineFault, Machine
from cellbox.wire import messages

FREEZE_AFTER_SECONDS = 2.0
"""Of silence. Long enough that a conversation is not slowed by thaws (about 1 ms each), short enough that idle
sandboxes cost no CPU: an idle sentry of the older runsc release takes 2.5 to 3 % of a core."""
_ACTIVITY_TIMEOUT_SECONDS = 5.0
_QUIET_TIMEOUT_SECONDS = 30.0  # for a guest on a busy host to end the frame that it is sending

Connection = tuple[Machine, GuestLink]


class Guest:
    """One machine and its link, or none of both while it is hibernated. Everything is done to it inside `use()`."""

    def __init__(
        self, connection: Connection | None, *, can_freeze: bool, wake: Callable[[], Awaitable[Connection]]
    ) -> None:
        """`wake` brings a hibernated machine back; it is called when somebody uses the guest."""
        self._connection = connection
        self._wake = wake
        self._last_used = time.monotonic()
        self._can_freeze = can_freeze
        self._users = 0
        self._is_frozen = False
        self._is_paused = False
        self._is_leaving = False
        self._gate = asyncio.Lock()  # around freezing and thawing
        self._turn = asyncio.Lock()  # around saving, pausing, hibernating, waking: one at a time
        self._freezing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gone: errors.APIError | None = None

    @property
    def machine(self) -> Machine | None:
        """None while it is hibernated."""
        return self._connection[0] if self._connection is not None else None

    @property
    def is_used(self) -> bool:
        """Whether a call is in progress."""
        return self._users > 0

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    @property
    def is_resting(self) -> bool:
        """True when it is frozen because nothing of the user's runs in it."""
        return self._is_frozen and not self._is_paused

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncGenerator[GuestLink]:
        """Hold the guest awake and yield its link, waking it up if it is hibernated.

        Raises the reason when the sandbox is gone, and `SandboxNotRunningError` when it is paused.
        """
        self._check_usable()
        if self._connection is None or self._is_leaving:
            await self.wake()
        async with self._awake() as (_, link):
            yield link

    async def wake(self) -> None:
        """Bring the machine back if it is hibernated."""
        async with self._turn:
            if self._gone is not None:
                raise self._gone
            if self._connection is None:
                connection = await self._wake()
                if self._gone is not None:  # killed meanwhile
                    connection[1].close(self._gone)
                    await connection[0].kill()
                    raise self._gone
                self._connection = connection
                self._last_used = time.monotonic()
                if not self._users:
                    self._freeze_later()

    async def save(self, image: Path) -> None:
        """Save the machine into the empty directory `image`. It goes on, and so do calls in progress.

        Raises `EngineFault` when it can't be saved, `SandboxNotRunningError` when it is hibernated.
        """
        async with self._turn:
            async with self._awake() as (machine, link), link.quiet(timeout_seconds=_QUIET_TIMEOUT_SECONDS):
                await machine.checkpoint(image, leave_running=True)
            if self._is_paused:
                await self._rest()

    async def hibernate(self, save: Callable[[Machine], Awaitable[None]], reason: errors.APIError) -> bool:
        """Have the machine saved by `save`, then end it; calls in progress end with `reason`.

        When `save` raises, the machine goes on as before. Returns False when it was hibernated already.
        """
        async with self._turn:
            if self._gone is not None:
                raise self._gone
            if self._connection is None:
                return False
            self._is_leaving = True  # who comes now waits for the turn, and then wakes it up
            try:
                async with self._awake() as (machine, link), link.quiet(timeout_seconds=_QUIET_TIMEOUT_SECONDS):
                    await self._save_for_good(machine, save)
                    self._connection = None
                    self._stop_freezing()
                    self._is_frozen = self._is_paused = False
                    link.close(reason)
                await machine.kill()
            finally:
                self._is_leaving = False
                if self._is_paused:
                    await self._rest()
        return True

    async def _save_for_good(self, machine: Machine, save: Callable[[Machine], Awaitable[None]]) -> None:
        """Save, and keep the machine still from then on. It is ended only when all of it is on the disk."""
        try:
            await save(machine)
            if self._gone is not None:  # killed meanwhile
                raise self._gone
        except BaseException:
            with contextlib.suppress(EngineFault):
                await machine.resume()
            raise

    async def settled(self) -> None:
        """Wait until nothing is being saved, hibernated or woken."""
        async with self._turn:
            pass

    async def pause(self) -> None:
        """Stop the guest until `resume`; calls in progress wait. Idempotent. Raises `EngineFault`."""
        async with self._turn:
            self._check_here()
            if not self._is_paused:
                self._is_paused = True
                try:
                    await self._rest()
                except BaseException:
                    self._is_paused = False
                    raise

    async def resume(self) -> None:
        """Undo `pause`. Idempotent. Raises `EngineFault`."""
        async with self._turn:
            self._check_here()
            if self._is_paused:
                await self._thaw()
                self._is_paused = False
                self._last_used = time.monotonic()
                if not self._users:
                    self._freeze_later()

    async def kill(self) -> None:
        """End the machine, if there is one."""
        if self._connection is not None:
            await self._connection[0].kill()

    def end(self, reason: errors.APIError) -> None:
        """The machine is gone or going: every call in progress and to come ends with `reason`. Idempotent."""
        if self._gone is not None:
            return
        self._gone = reason
        self._stop_freezing()
        if self._connection is not None:
            self._connection[1].close(reason)

    @property
    def idle_seconds(self) -> float:
        """Since the last call ended; zero while one is in progress."""
        return 0.0 if self._users else time.monotonic() - self._last_used

    def _check_usable(self) -> None:
        if self._gone is not None:
            raise self._gone
        if self._is_paused:
            raise errors.SandboxNotRunningError(
                "sandbox not running (paused): resume it first", details={"cause": "", "status": "paused"}
            )

    def _check_here(self) -> Connection:
        if self._gone is not None:
            raise self._gone
        if self._connection is None:
            raise errors.SandboxNotRunningError(
                "sandbox not running (hibernated): wake it first", details={"cause": "", "status": "hibernated"}
            )
        return self._connection

    @contextlib.asynccontextmanager
    async def _awake(self) -> AsyncGenerator[Connection]:
        connection = self._check_here()
        self._users += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            if self._is_frozen or self._freezing is not None:
                await self._thaw()
            yield connection
        finally:
            self._users -= 1
            self._last_used = time.monotonic()
            if not self._users:
                self._freeze_later()

    def _stop_freezing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._freezing is not None:
            self._freezing.cancel()

    def _freeze_later(self) -> None:
        if self._can_freeze and self._gone is None and self._connection is not None and not self._is_paused:
            if self._timer is not None:
                self._timer.cancel()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(FREEZE_AFTER_SECONDS, self._begin_freezing)

    def _begin_freezing(self) -> None:
        self._timer = None
        if not self._users and self._freezing is None and self._connection is not None and not self._is_paused:
            self._freezing = asyncio.get_running_loop().create_task(self._freeze(*self._connection))

    async def _freeze(self, machine: Machine, link: GuestLink) -> None:
        """Freeze unless something of the user's would be held up; look again after the next pause otherwise."""
        try:
            async with self._gate:
                activity = await link.ask(
                    messages.ReadActivity(), messages.Activity, timeout_seconds=_ACTIVITY_TIMEOUT_SECONDS
                )
                if self._users or activity.commands or activity.background_processes:
                    return
                self._is_frozen = True
                await machine.pause()
        except EngineFault:
            self._can_freeze = False
            self._is_frozen = False
        except errors.APIError:
            return  # gone, or too busy to answer: either way nothing to freeze
        finally:
            self._freezing = None
            if not self._is_frozen and not self._users:
                self._freeze_later()

    async def _rest(self) -> None:
        """Freeze the machine on request."""
        async with self._gate:
            machine, link = self._check_here()
            if not self._is_frozen:
                await machine.pause()
                self._is_frozen = True
            link.is_paused = True

    async def _thaw(self) -> None:
        async with self._gate:
            if self._connection is not None:
                machine, link = self._connection
                if self._is_frozen:
                    await machine.resume()
                    self._is_frozen = False
                link.is_paused = False
