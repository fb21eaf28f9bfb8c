"""Snapshots: who has which, within which bounds, and for how long. The images themselves are kept by `images.py`."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from datetime import UTC, datetime

from cellbox import errors
from cellbox.control.images import Images, SavedImage, manifest_of, save_failed
from cellbox.control.sandbox import LiveSandbox
from cellbox.control.settings import Settings
from cellbox.control.tasks import Tasks
from cellbox.engines.base import Engine, EngineFault
from cellbox.protocol.sandboxes import SandboxStatus
from cellbox.protocol.snapshots import SnapshotInfo, TakeSnapshot
from cellbox.store.base import SnapshotRow, Store

_EXPIRE_SECONDS = 30.0  # how late an expiry may be noticed
_TAKEABLE = (SandboxStatus.RUNNING, SandboxStatus.PAUSED)


class Snapshots:
    """All snapshots of this installation. Ids mean nothing without their owner."""

    def __init__(self, *, settings: Settings, engine: Engine, images: Images, store: Store, tasks: Tasks) -> None:
        self._settings = settings
        self._engine = engine
        self._images = images
        self._store = store
        self._tasks = tasks
        self._rows: dict[str, SnapshotRow] = {}
        self._taking: Counter[str] = Counter()

    async def start(self) -> None:
        """Find what there is, and begin to delete what has expired."""
        self._rows = {row.id: row for row in reversed(await self._store.list_snapshots())}
        await self._images.start(self._rows)
        self._tasks.start(self._expire(), name="snapshot expiry")

    def list(self, owner: str, sandbox_id: str = "") -> list[SnapshotInfo]:
        """Return the owner's snapshots, newest first; of one sandbox if it is named."""
        return [
            _info(row)
            for row in reversed(self._rows.values())
            if row.owner == owner and (not sandbox_id or row.sandbox_id == sandbox_id)
        ]

    def get(self, owner: str, snapshot_id: str) -> SnapshotInfo:
        return _info(self._find(owner, snapshot_id))

    def count(self) -> tuple[int, int]:
        """How many there are, of all owners, and their bytes on disk."""
        return len(self._rows), sum(row.size_bytes for row in self._rows.values())

    def digests(self) -> set[str]:
        """Contents of templates that snapshots need."""
        return {row.template_digest for row in self._rows.values()}

    async def take(self, sandbox: LiveSandbox, body: TakeSnapshot) -> SnapshotInfo:
        """Save a sandbox, which goes on, or leave nothing behind.

        Raises `QuotaExceededError`, `StorageFullError`, `SandboxNotRunningError`, `GuestError`.
        """
        if sandbox.status not in _TAKEABLE:
            raise sandbox.gone()
        sandbox.check_savable()
        ttl_seconds = body.ttl_seconds if body.ttl_seconds is not None else self._settings.snapshot_ttl_seconds
        used = (await sandbox.usage()).host_rss_bytes
        self._admit(sandbox.owner, used)
        self._taking[sandbox.owner] += 1
        try:
            # Seen through once begun: a caller that goes away leaves a snapshot that it can list, not half of one.
            return await asyncio.shield(asyncio.ensure_future(self._take(sandbox, body.name, ttl_seconds)))
        finally:
            self._taking[sandbox.owner] -= 1

    async def _take(self, sandbox: LiveSandbox, name: str, ttl_seconds: float) -> SnapshotInfo:
        now = time.time()
        snapshot_id = str(uuid.uuid4())
        manifest = manifest_of(
            sandbox.spec,
            image_id=snapshot_id,
            owner=sandbox.owner,
            template=sandbox.template,
            template_digest=sandbox.template_digest,
            image_key=self._engine.image_key(),
        )
        try:
            image = await self._images.save(manifest, sandbox.guest.save)
        except EngineFault as fault:
            raise save_failed(fault) from fault
        row = SnapshotRow(
            id=snapshot_id,
            owner=sandbox.owner,
            sandbox_id=sandbox.id,
            name=name,
            template=sandbox.template,
            template_digest=sandbox.template_digest,
            size_bytes=image.manifest.size_bytes,
            sha256=image.sha256,
            cpu=sandbox.spec.cpu,
            memory_mb=sandbox.spec.memory_mb,
            disk_mb=sandbox.spec.disk_mb,
            created_at=now,
            expires_at=now + ttl_seconds,
        )
        try:
            await self._store.save_snapshot(row)
        except BaseException:
            await self._images.remove(snapshot_id)
            raise
        self._rows[snapshot_id] = row
        return _info(row)

    async def open(self, owner: str, snapshot_id: str) -> SavedImage:
        """Check a snapshot's image and return it. Raises `SnapshotNotFoundError`, `SnapshotUnusableError`."""
        row = self._find(owner, snapshot_id)
        return await self._images.open(row.id, image_key=self._engine.image_key())

    async def delete(self, owner: str, snapshot_id: str) -> None:
        """Delete it; sandboxes made from it live on. Raises `SnapshotNotFoundError`."""
        await self._delete(self._find(owner, snapshot_id))

    async def _delete(self, row: SnapshotRow) -> None:
        self._rows.pop(row.id, None)
        await self._store.delete_snapshot(row.id)
        await self._images.remove(row.id)

    def _find(self, owner: str, snapshot_id: str) -> SnapshotRow:
        row = self._rows.get(snapshot_id)
        if row is None or row.owner != owner or row.expires_at <= time.time():
            raise errors.SnapshotNotFoundError(
                f"no snapshot {snapshot_id[:64]!r}: it was deleted, has expired or never was"
            )
        return row

    def _admit(self, owner: str, expected_bytes: int) -> None:
        """Refuse before anything is written."""
        rows = [row for row in self._rows.values() if row.owner == owner]
        own, limit = len(rows) + self._taking[owner], self._settings.max_snapshots_per_owner
        if own >= limit:
            raise errors.QuotaExceededError(
                f"max snapshots reached: you have {own} of {limit}; delete one first",
                details={"quota": "max_snapshots_per_owner", "max": limit, "active": own},
            )
        used_mb, limit_mb = sum(row.size_bytes for row in rows) >> 20, self._settings.max_snapshot_mb_per_owner
        if used_mb + (expected_bytes >> 20) > limit_mb:
            raise errors.QuotaExceededError(
                f"your snapshots take {used_mb} of {limit_mb} MiB, and this one would take about"
                f" {expected_bytes >> 20}; delete one first",
                details={"quota": "max_snapshot_mb_per_owner", "max": limit_mb, "active": used_mb},
            )
        self._images.check_space(expected_bytes)

    async def _expire(self) -> None:
        while True:
            now = time.time()
            for row in [row for row in self._rows.values() if row.expires_at <= now]:
                await self._delete(row)
            await asyncio.sleep(_EXPIRE_SECONDS)


def _info(row: SnapshotRow) -> SnapshotInfo:
    return SnapshotInfo(
        id=row.id,
        sandbox_id=row.sandbox_id,
        template=row.template,
        template_digest=row.template_digest,
        created_at=datetime.fromtimestamp(row.created_at, UTC),
        expires_at=datetime.fromtimestamp(row.expires_at, UTC),
        size_bytes=row.size_bytes,
        memory_mb=row.memory_mb,
        disk_mb=row.disk_mb,
        cpu=row.cpu,
        sha256=row.sha256,
        name=row.name,
    )
