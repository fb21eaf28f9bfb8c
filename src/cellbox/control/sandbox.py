"""One live sandbox: what it is, how long it has, and the way to its commands, contexts and files."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

from msgspec import UNSET

from cellbox import errors
from cellbox.control.commands import Commands
from cellbox.control.contexts import Contexts
from cellbox.control.files import Files
from cellbox.control.guest import Guest
from cellbox.control.logs import SandboxLog
from cellbox.control.workspaces import Hold
from cellbox.engines.base import EngineFault, MachineSpec
from cellbox.protocol.sandboxes import (
    CreateSandbox,
    Lifecycle,
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


class LiveSandbox:
    """A sandbox of this daemon. `commands`, `contexts` and `files` reach into it; `log` is what it has said."""

    def __init__(
        self,
        *,
        row: SandboxRow,
        request: CreateSandbox,
        spec: MachineSpec,
        guest: Guest,
        log: SandboxLog,
        store: Store,
        ttl_seconds: float,
        max_ttl_seconds: float,
        boot_mode: str,
        boot_ms: float,
        engine: str,
        enforced: dict[str, bool],
        limitations: list[str],
        hold: Hold,
    ) -> None:
        self.id = row.id
        self.owner = row.owner
        self.status = SandboxStatus.RUNNING
        self.guest = guest
        self.log = log
        self.hold = hold
        self.commands = Commands(guest)
        self.contexts = Contexts(guest, row.id)
        self.files = Files(guest)
        self.failure = ""
        self._row = row
        self._request = request
        self._spec = spec
        self._store = store
        self._boot_mode, self._boot_ms = boot_mode, boot_ms
        self._engine, self._enforced, self._limitations = engine, enforced, limitations
        self._metadata = dict(request.metadata)
        self._persistent = request.persistent
        self._ttl_seconds = ttl_seconds
        self._max_ttl_seconds = max_ttl_seconds
        self._started = time.monotonic()
        self._deadline = self._started + ttl_seconds

    @property
    def deadline(self) -> float | None:
        """When it is reaped, on the monotonic clock (a step of the wall clock must not kill anything); None: never."""
        return None if self._persistent else self._deadline

    def info(self) -> SandboxInfo:
        return SandboxInfo(
            id=self.id,
            template=self._row.template,
            template_digest=self._row.template_digest,
            status=self.status,
            cpu=self._spec.cpu,
            memory_mb=self._spec.memory_mb,
            disk_mb=self._spec.disk_mb,
            created_at=datetime.fromtimestamp(self._row.created_at, UTC),
            metadata={key: value for key, value in self._metadata.items() if not key.startswith(_SECRET_PREFIX)},
            persistent=self._persistent,
            ttl_seconds=self._ttl_seconds,
            expires_at=self._expires_at(),
            boot_ms=self._boot_ms,
            boot_mode=self._boot_mode,
            engine=self._engine,
            enforced=self._enforced,
            limitations=self._limitations,
            workspace=self._request.workspace,
            volumes=self._request.volumes,
            failure=self.failure,
        )

    def lifecycle(self) -> Lifecycle:
        return Lifecycle(
            ttl_seconds=self._ttl_seconds,
            persistent=self._persistent,
            idle_seconds=round(self.guest.idle_seconds, 3),
            expires_at=self._expires_at(),
        )

    async def update_lifecycle(self, body: UpdateLifecycle) -> Lifecycle:
        if body.ttl_seconds is not UNSET:
            if body.ttl_seconds > self._max_ttl_seconds:
                raise errors.InvalidRequestError(f"ttl_seconds exceeds tier maximum of {self._max_ttl_seconds:g}")
            self._ttl_seconds = body.ttl_seconds
            self._deadline = time.monotonic() + body.ttl_seconds
        if body.persistent is not UNSET:
            self._persistent = body.persistent
        await self._save()
        return self.lifecycle()

    async def update_metadata(self, body: UpdateMetadata) -> SandboxInfo:
        check_metadata(body.metadata)
        self._metadata = dict(body.metadata)
        await self._save()
        return self.info()

    async def usage(self) -> SandboxUsage:
        if self.status is not SandboxStatus.RUNNING:
            raise self.gone()
        try:
            usage = await self.guest.machine.usage()
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

    def fail(self, cause: str, detail: str) -> None:
        """Its machine ended without being asked to. The row stays, with the reason, until its TTL."""
        self.status = SandboxStatus.FAILED
        self.failure = f"{cause}: {detail}"
        self.log.say(f"the sandbox has failed: {self.failure}")
        self.log.close()
        self.guest.end(self.gone(cause))

    def gone(self, cause: str = "") -> errors.APIError:
        """Return the error for a call that needs a running sandbox."""
        return errors.SandboxNotRunningError(
            f"sandbox {self.id} is not running ({self.failure or self.status}); create another",
            details={"cause": cause, "status": str(self.status)},
        )

    def _expires_at(self) -> datetime | None:
        if self._persistent:
            return None
        return datetime.fromtimestamp(time.time() + self._deadline - time.monotonic(), UTC)

    async def _save(self) -> None:
        expires = self._expires_at()
        self._row = SandboxRow(
            id=self._row.id,
            owner=self._row.owner,
            template=self._row.template,
            template_digest=self._row.template_digest,
            status=str(self.status),
            request=self._row.request,
            created_at=self._row.created_at,
            expires_at=None if expires is None else expires.timestamp(),
            persistent=self._persistent,
            metadata=self._metadata,
            machine_id=self._row.machine_id,
        )
        await self._store.save_sandbox(self._row)


def check_metadata(metadata: dict[str, str]) -> None:
    """Raise `InvalidRequestError` when metadata is over its bounds."""
    if len(metadata) > _MAX_METADATA_ENTRIES:
        raise errors.InvalidRequestError(f"at most {_MAX_METADATA_ENTRIES} metadata entries, got {len(metadata)}")
    for key, value in metadata.items():
        if len(key) > _MAX_METADATA_CHARACTERS or len(value) > _MAX_METADATA_CHARACTERS:
            raise errors.InvalidRequestError(
                f"metadata keys and values have at most {_MAX_METADATA_CHARACTERS} characters: {key[:64]!r}"
            )
