"""One live sandbox: what it is, how long it has, and the way to its commands, contexts and files."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import UNSET

from cellbox import errors
from cellbox.control.clock import LifeClock
from cellbox.control.files import Files
from cellbox.control.guest import Guest
from cellbox.control.journal import Journals
from cellbox.control.journaled import JournaledCommands, JournaledContexts, JournaledShells
from cellbox.control.logs import SandboxLog
from cellbox.control.settings import Settings
from cellbox.control.workspaces import Hold
from cellbox.engines.base import EngineFault, MachineSpec
from cellbox.protocol.sandboxes import (
    CreateSandbox,
    Lifecycle,
    OnTimeout,
    SandboxInfo,
    SandboxStatus,
    SandboxUsage,
    UpdateLifecycle,
    UpdateMetadata,
)
from cellbox.store.base import SandboxRow, Store

_MAX_METADATA_ENTRIES: Final = 64
_MAX_METADATA_CHARACTERS: Final = 4096
_SECRET_PREFIX: Final = "secret."  # noqa: S105 - a prefix of names, not a secret
_ALIVE = (SandboxStatus.RUNNING, SandboxStatus.PAUSED, SandboxStatus.HIBERNATED)


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """How a sandbox came to be: what its row keeps while it is hibernated, beside what changes."""

    boot_mode: str
    boot_ms: float
    forked_from: str | None = None
    limitations: list[str] = []
    tools: list[str] = []


class Rest(msgspec.Struct, frozen=True, kw_only=True):
    """What a hibernated sandbox needs to go on, in its row."""

    birth: Birth
    ttl_seconds: float
    remaining_seconds: float
    on_timeout: OnTimeout
    forget_at: float
    """Seconds since the epoch at which it is removed, unless it is persistent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What is the same for all sandboxes of a daemon."""

    store: Store
    settings: Settings
    journals: Journals
    engine: str
    enforced: dict[str, bool]


class LiveSandbox:
    """A sandbox of this daemon. `commands`, `contexts` and `files` reach into it; `log` is what it has said."""

    def __init__(
        self,
        *,
        host: Host,
        row: SandboxRow,
        request: CreateSandbox,
        spec: MachineSpec,
        guest: Guest,
        log: SandboxLog,
        clock: LifeClock,
        birth: Birth,
        hold: Hold,
    ) -> None:
        self.id = row.id
        self.owner = row.owner
        self.status = SandboxStatus.RUNNING
        self.guest = guest
        self.log = log
        self.clock = clock
        self.spec = spec
        self.request = request
        self.birth = birth
        self.hold = hold
        self.journal = host.journals.open(row.id, row.owner, row.template)
        self.commands = JournaledCommands(guest, self.journal)
        self.shells = JournaledShells(guest, self.journal)
        self.contexts = JournaledContexts(guest, row.id, self.journal)
        self.files = Files(guest)
        self.failure = ""
        self._host = host
        self._row = row
        self._metadata = dict(row.metadata)
        self._persistent = row.persistent
        self._on_timeout: OnTimeout = request.on_timeout
        self._started = time.monotonic()
        self._forget_at = 0.0

    @classmethod
    def hibernated(
        cls,
        rest: Rest,
        *,
        host: Host,
        row: SandboxRow,
        request: CreateSandbox,
        spec: MachineSpec,
        guest: Guest,
        hold: Hold,
    ) -> LiveSandbox:
        """Return one that an earlier daemon has put on disk."""
        clock = LifeClock(rest.ttl_seconds, remaining_seconds=rest.remaining_seconds)
        sandbox = cls(
            host=host,
            row=row,
            request=request,
            spec=spec,
            guest=guest,
            log=SandboxLog(),
            clock=clock,
            birth=rest.birth,
            hold=hold,
        )
        sandbox.status = SandboxStatus.HIBERNATED
        sandbox._on_timeout = rest.on_timeout
        sandbox._forget_at = rest.forget_at
        return sandbox

    @property
    def template(self) -> str:
        return self._row.template

    @property
    def template_digest(self) -> str:
        return self._row.template_digest

    @property
    def persistent(self) -> bool:
        return self._persistent

    @property
    def on_timeout(self) -> OnTimeout:
        return self._on_timeout

    @property
    def metadata(self) -> dict[str, str]:
        """All of it, with the entries that are never returned."""
        return dict(self._metadata)

    @property
    def is_expired(self) -> bool:
        """True when its time is over, or when it was hibernated too long ago."""
        if self._persistent:
            return False
        if self.status is SandboxStatus.HIBERNATED:
            return time.time() >= self._forget_at
        return self.clock.is_up

    @property
    def has_idled(self) -> bool:
        """True when it is persistent and has done nothing for so long that it need not be kept in memory."""
        limit = self._host.settings.hibernate_idle_seconds
        running = self.status is SandboxStatus.RUNNING
        savable = self._persistent and running and not self.spec.attachments
        return savable and self.guest.is_resting and self.guest.idle_seconds >= limit

    def info(self) -> SandboxInfo:
        return SandboxInfo(
            id=self.id,
            template=self._row.template,
            template_digest=self._row.template_digest,
            tools=self.birth.tools,
            status=self.status,
            cpu=self.spec.cpu,
            memory_mb=self.spec.memory_mb,
            disk_mb=self.spec.disk_mb,
            created_at=datetime.fromtimestamp(self._row.created_at, UTC),
            metadata={key: value for key, value in self._metadata.items() if not key.startswith(_SECRET_PREFIX)},
            persistent=self._persistent,
            ttl_seconds=self.clock.ttl_seconds,
            expires_at=self._expires_at(),
            boot_ms=self.birth.boot_ms,
            boot_mode=self.birth.boot_mode,
            engine=self._host.engine,
            enforced=self._host.enforced,
            limitations=self.birth.limitations,
            from_snapshot=self.request.from_snapshot,
            forked_from=self.birth.forked_from,
            on_timeout=self._on_timeout,
            workspace=self.request.workspace,
            volumes=self.request.volumes,
            failure=self.failure,
        )

    def lifecycle(self) -> Lifecycle:
        return Lifecycle(
            ttl_seconds=self.clock.ttl_seconds,
            persistent=self._persistent,
            idle_seconds=round(self.guest.idle_seconds, 3),
            expires_at=self._expires_at(),
            on_timeout=self._on_timeout,
        )

    def keep_alive(self) -> None:
        """Begin the TTL anew. Not stored: a sandbox does not outlive its daemon."""
        self.clock.set(self.clock.ttl_seconds)

    async def update_lifecycle(self, body: UpdateLifecycle) -> Lifecycle:
        if body.ttl_seconds is not UNSET:
            limit = self._host.settings.max_ttl_seconds
            if body.ttl_seconds > limit:
                raise errors.InvalidRequestError(f"ttl_seconds exceeds tier maximum of {limit:g}")
            self.clock.set(body.ttl_seconds)
        if body.persistent is not UNSET:
            self._persistent = body.persistent
        if body.on_timeout == "hibernate":
            self.check_savable()
        if body.on_timeout is not UNSET:
            self._on_timeout = body.on_timeout
        await self.save()
        return self.lifecycle()

    async def update_metadata(self, body: UpdateMetadata) -> SandboxInfo:
        check_metadata(body.metadata)
        self._metadata = dict(body.metadata)
        await self.save()
        return self.info()

    async def pause(self) -> None:
        """Stop it where it is; its time stands still. Idempotent. Raises `SandboxNotRunningError`, `GuestError`."""
        await self._turn_into(SandboxStatus.PAUSED)

    async def resume(self) -> None:
        """Let it go on. Idempotent. Raises `SandboxNotRunningError`, `GuestError`."""
        await self._turn_into(SandboxStatus.RUNNING)

    async def _turn_into(self, status: SandboxStatus) -> None:
        if self.status not in _ALIVE:
            raise self.gone()
        try:
            await (self.guest.pause() if status is SandboxStatus.PAUSED else self.guest.resume())
        except EngineFault as fault:
            raise errors.GuestError(f"the sandbox could not be {status}: {str(fault)[:500]}") from fault
        if self.status in _ALIVE:  # not killed meanwhile
            paused = self.guest.is_paused
            self.status = SandboxStatus.PAUSED if paused else SandboxStatus.RUNNING
            self.clock.stop() if paused else self.clock.go_on()
            await self.save()

    async def usage(self) -> SandboxUsage:
        machine = self.guest.machine
        if self.status not in _ALIVE or machine is None:
            raise self.gone()
        try:
            usage = await machine.usage()
        except EngineFault as fault:
            raise errors.GuestError(f"the machine could not be measured: {fault}") from fault
        uptime = time.monotonic() - self._started
        return SandboxUsage(
            uptime_seconds=round(uptime, 3),
            host_cpu_seconds=usage.cpu_seconds,
            host_cpu_percent=round(100 * usage.cpu_seconds / max(uptime, 0.001), 2),
            host_rss_bytes=usage.memory_bytes,
            host_peak_bytes=usage.memory_peak_bytes,
            processes=usage.processes,
            pid=1,
        )

    def stop(self) -> None:
        """It is being killed: calls in progress end now, and nothing new is let in."""
        self.status = SandboxStatus.STOPPING
        self.guest.end(errors.SandboxNotFoundError(f"sandbox {self.id} was killed"))
        self.log.close()
        self.journal.close()

    def fail(self, cause: str, detail: str) -> None:
        """Its machine ended without being asked to. The row stays, with the reason, until its TTL."""
        self.status = SandboxStatus.FAILED
        self.failure = f"{cause}: {detail}"
        self.clock.go_on()
        self.log.say(f"the sandbox has failed: {self.failure}")
        self.log.close()
        self.guest.end(self.gone(cause))

    def gone(self, cause: str = "") -> errors.APIError:
        """Return the error for a call that needs a running sandbox."""
        if self.status is SandboxStatus.HIBERNATED:
            advice = "wake it first"
        elif self.status is SandboxStatus.PAUSED:
            advice = "resume it first"
        else:
            advice = "create another"
        return errors.SandboxNotRunningError(
            f"sandbox {self.id} is not running ({self.failure or self.status}); {advice}",
            details={"cause": cause, "status": str(self.status)},
        )

    def check_savable(self) -> None:
        """Raise `ConflictError` for one with mounts: a saved copy of it would write to them beside it."""
        if self.spec.attachments:
            raise errors.ConflictError(
                f"sandbox {self.id} has workspaces or volumes mounted, and can't be saved, forked or hibernated",
                detail="copy what is needed into a sandbox without mounts",
            )

    def hibernated_now(self) -> None:
        """Its machine is on the disk: the clock stands still."""
        self.status = SandboxStatus.HIBERNATED
        self.clock.stop()
        self._forget_at = time.time() + self._host.settings.hibernated_ttl_seconds

    def woken_now(self) -> None:
        """Its machine is back: the clock goes on, with all of its time when that was over."""
        self.status = SandboxStatus.RUNNING
        self.clock.go_on()

    def _expires_at(self) -> datetime | None:
        if self._persistent or self.status is SandboxStatus.PAUSED:
            return None
        if self.status is SandboxStatus.HIBERNATED:
            return datetime.fromtimestamp(self._forget_at, UTC)
        return self.clock.ends_at()

    async def save(self) -> None:
        """Write its row."""
        await self._host.store.save_sandbox(self._as_row())

    def _as_row(self) -> SandboxRow:
        expires = self._expires_at()
        rest = b""
        if self.status is SandboxStatus.HIBERNATED:
            rest = msgspec.json.encode(
                Rest(
                    birth=self.birth,
                    ttl_seconds=self.clock.ttl_seconds,
                    remaining_seconds=self.clock.remaining_seconds,
                    on_timeout=self._on_timeout,
                    forget_at=self._forget_at,
                )
            )
        return replace(
            self._row,
            status=str(self.status),
            expires_at=None if expires is None else expires.timestamp(),
            persistent=self._persistent,
            metadata=self._metadata,
            rest=rest,
        )


def check_metadata(metadata: dict[str, str]) -> None:
    """Raise `InvalidRequestError` when metadata is over its bounds."""
    if len(metadata) > _MAX_METADATA_ENTRIES:
        raise errors.InvalidRequestError(f"at most {_MAX_METADATA_ENTRIES} metadata entries, got {len(metadata)}")
    for key, value in metadata.items():
        if len(key) > _MAX_METADATA_CHARACTERS or len(value) > _MAX_METADATA_CHARACTERS:
            raise errors.InvalidRequestError(
                f"metadata keys and values have at most {_MAX_METADATA_CHARACTERS} characters: {key[:64]!r}"
            )
