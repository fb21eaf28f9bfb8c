"""Puts sandboxes on disk and brings them back: the same sandbox, with the same id, in the same installation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from cellbox import errors
from cellbox.control.guest import Connection, Guest
from cellbox.control.images import Images, manifest_of, save_failed
from cellbox.control.machines import Machines
from cellbox.control.sandbox import Host, LiveSandbox, Rest
from cellbox.control.workspaces import Hold
from cellbox.engines.base import Engine, EngineFault, Machine
from cellbox.protocol.sandboxes import CreateSandbox, SandboxStatus
from cellbox.store.base import SandboxRow
from cellbox.wire import messages

_log = structlog.stdlib.get_logger(__name__)


class Hibernation:
    """The way down and up. `watch` is told of every machine that came back."""

    def __init__(self, *, engine: Engine, images: Images, machines: Machines) -> None:
        self._engine = engine
        self._images = images
        self._machines = machines

    async def hibernate(self, sandbox: LiveSandbox) -> None:
        """Save it, then end its machine. Idempotent. When it can't be saved it goes on as before.

        Raises `SandboxNotRunningError`, `StorageFullError`, `GuestError`.
        """
        if sandbox.status not in (SandboxStatus.RUNNING, SandboxStatus.PAUSED, SandboxStatus.HIBERNATED):
            raise sandbox.gone()
        sandbox.check_savable()
        # Seen through once begun: a caller that goes away must not leave it between two states.
        await asyncio.shield(asyncio.ensure_future(self._hibernate(sandbox)))

    async def _hibernate(self, sandbox: LiveSandbox) -> None:
        before = sandbox.status

        async def save(machine: Machine) -> None:
            self._images.check_space((await machine.usage()).memory_bytes)
            manifest = manifest_of(
                sandbox.spec,
                image_id=sandbox.id,
                owner=sandbox.owner,
                template=sandbox.template,
                template_digest=sandbox.template_digest,
                image_key=self._engine.image_key(),
            )

            async def take(image: Path) -> None:
                await machine.checkpoint(image, leave_running=True)
                await machine.pause()  # it may be needed again, but must not go on beside its image

            await self._images.remove(sandbox.id)
            await self._images.save(manifest, take)
            try:
                sandbox.hibernated_now()
                await sandbox.save()
            except BaseException:
                sandbox.woken_now()
                sandbox.status = before
                raise

        reason = errors.SandboxNotRunningError(
            f"sandbox {sandbox.id} was hibernated while this was in progress; it goes on when the sandbox wakes up, and"
            " what it prints is lost",
            details={"cause": "hibernated", "status": "hibernated"},
        )
        try:
            await sandbox.guest.hibernate(save, reason)
        except EngineFault as fault:
            raise save_failed(fault) from fault

    async def wake(self, sandbox: LiveSandbox, watch: Callable[[LiveSandbox, Machine], None]) -> Connection:
        """Restore its machine. It stays hibernated when that fails. Raises `SnapshotUnusableError`, `GuestError`."""
        image = await self._images.open(sandbox.id, image_key=self._engine.image_key())
        spec = self._machines.spec_of(image.manifest, sandbox.id)
        connection, _ = await self._machines.restore(spec, image.path, sandbox.log, messages.Renew())
        try:
            sandbox.spec = spec
            sandbox.woken_now()
            await sandbox.save()
        except BaseException:
            sandbox.hibernated_now()
            await self._machines.discard(connection)
            raise
        watch(sandbox, connection[0])
        await self._images.remove(sandbox.id)
        return connection

    async def forget(self, sandbox: LiveSandbox) -> None:
        """Delete what is on the disk of it."""
        await self._images.remove(sandbox.id)

    async def find(self, row: SandboxRow, host: Host, guest: Guest, hold: Hold) -> LiveSandbox | None:
        """Return the sandbox of a row that an earlier daemon left hibernated; None if the row is of another kind."""
        if row.status != SandboxStatus.HIBERNATED or not row.rest:
            return None
        manifest = await self._images.read(row.id)
        if manifest is None:
            _log.warning("a hibernated sandbox has no image", sandbox_id=row.id)
            return None
        with contextlib.suppress(msgspec.MsgspecError):
            rest = msgspec.json.decode(row.rest, type=Rest)
            request = msgspec.json.decode(row.request, type=CreateSandbox)
            spec = manifest.spec(row.id, Path())  # its template may be gone: whether it can be woken is seen then
            return LiveSandbox.hibernated(rest, host=host, row=row, request=request, spec=spec, guest=guest, hold=hold)
        _log.warning("a hibernated sandbox's row can't be read", sandbox_id=row.id)
        return None
