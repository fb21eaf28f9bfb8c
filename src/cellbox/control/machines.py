"""Starts machines: from a template's baked snapshot, cold, or from a saved image; and gives each its link."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from cellbox import errors
from cellbox.control.guest import Connection
from cellbox.control.images import Manifest, unusable
from cellbox.control.link import GuestLink
from cellbox.control.logs import SandboxLog
from cellbox.control.tasks import Tasks
from cellbox.engines.base import Engine, EngineFault, Machine, MachineSpec
from cellbox.templates.catalogue import Template
from cellbox.templates.templates import Templates
from cellbox.wire import messages

_HELLO_SECONDS = 60.0  # a cold boot imports pandas on a busy host
_ANSWER_SECONDS = 30.0

_log = structlog.stdlib.get_logger(__name__)


Started = tuple[Connection, messages.Configured, str]
"""A machine that is a sandbox's, what its guest said, and the boot mode."""


class Machines:
    """Machines of this daemon. The engine must be started."""

    def __init__(self, *, engine: Engine, templates: Templates, tasks: Tasks) -> None:
        self._engine = engine
        self._templates = templates
        self._tasks = tasks
        self._baking: set[str] = set()
        self._broken: dict[str, str] = {}

    async def start(
        self, spec: MachineSpec, template: Template, configure: messages.Configure, log: SandboxLog
    ) -> Started:
        """Start a template's machine and make its guest a sandbox's, or leave nothing behind."""
        connection, boot_mode = await self._start(spec, template, log)
        try:
            return connection, await self._ask(connection, configure), boot_mode
        except BaseException:
            await self.discard(connection)
            raise

    async def _start(self, spec: MachineSpec, template: Template, log: SandboxLog) -> tuple[Connection, str]:
        """Restore the template's baked snapshot; boot when there is none that fits, or it can't be restored.

        Returns the connection to the waiting guest, and the boot mode.
        """
        image = self._templates.baked_image(template)
        if image is None:
            self._bake_later(template)
        else:
            try:
                machine = await self._engine.restore(spec, image)
                return (machine, self._link(machine, log)), "snapshot"
            except EngineFault as fault:
                _log.warning("restore failed, booting instead", template=template.name, fault=str(fault)[:500])
        try:
            machine = await self._engine.boot(spec)
        except EngineFault as fault:
            raise errors.EngineUnavailableError(f"the sandbox could not be started: {str(fault)[:500]}") from fault
        link = self._link(machine, log)
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                await link.wait_hello()
        except BaseException as error:
            await self.discard((machine, link))
            if isinstance(error, TimeoutError):
                raise errors.GuestError(f"the guest did not come up: {log.text(tail=5)[:500]}") from None
            raise
        return (machine, link), "cold"

    async def restore(
        self, spec: MachineSpec, image: Path, log: SandboxLog, renew: messages.Renew
    ) -> tuple[Connection, messages.Configured]:
        """Restore a saved sandbox and tell it who it is now. Raises `SnapshotUnusableError`, `GuestError`."""
        try:
            machine = await self._engine.restore(spec, image)
        except EngineFault as fault:
            raise unusable("damaged", f"the engine refused it: {str(fault)[:300]}") from fault
        connection = machine, self._link(machine, log)
        try:
            return connection, await self._ask(connection, renew)
        except BaseException:
            await self.discard(connection)
            raise

    def spec_of(self, manifest: Manifest, machine_id: str) -> MachineSpec:
        """Return what a saved image is restored with under this id. Raises `SnapshotUnusableError`."""
        rootfs = self._templates.rootfs(manifest.template_digest)
        if rootfs is None:
            raise unusable("template_gone", f"content {manifest.template_digest[:12]} of {manifest.template!r} is gone")
        return manifest.spec(machine_id, rootfs)

    async def _ask(self, connection: Connection, request: messages.Configure | messages.Renew) -> messages.Configured:
        """Make a guest that has just started this sandbox's."""
        return await connection[1].ask(request, messages.Configured, timeout_seconds=_ANSWER_SECONDS)

    async def discard(self, connection: Connection) -> None:
        """End a machine that did not become a sandbox's."""
        machine, link = connection
        link.close(errors.GuestError("the sandbox could not be started"))
        await asyncio.shield(machine.kill())
        self._broken.pop(machine.machine_id, None)

    def broken(self, machine: Machine) -> str:
        """Return, once, how a machine's guest broke the protocol; empty when it did not."""
        return self._broken.pop(machine.machine_id, "")

    def _bake_later(self, template: Template) -> None:
        """Make the snapshot that is missing (a newer engine or Cellbox came), so that later creates have one."""
        if template.digest not in self._baking:
            self._baking.add(template.digest)
            self._tasks.start(self._templates.bake(template), name=f"bake {template.name}")

    def _link(self, machine: Machine, log: SandboxLog) -> GuestLink:
        def on_fault(reason: str) -> None:
            self._broken[machine.machine_id] = reason
            self._tasks.start(machine.kill(), name=f"kill {machine.machine_id}")

        return GuestLink(machine.channel, on_log=log.add, on_fault=on_fault)
