"""All sandboxes of this daemon: create, find, kill, reap at their TTL, and sweep what an earlier daemon left."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
import uuid
from collections import Counter, OrderedDict
from dataclasses import replace
from pathlib import Path

import msgspec
import structlog

from cellbox import errors
from cellbox.control.guest import Guest
from cellbox.control.link import GuestLink
from cellbox.control.logs import SandboxLog
from cellbox.control.sandbox import LiveSandbox, check_metadata
from cellbox.control.settings import Settings
from cellbox.control.tasks import Tasks
from cellbox.control.workspaces import Hold, Workspaces
from cellbox.engines.base import Engine, EngineFault, Machine, MachineSpec
from cellbox.protocol.sandboxes import CreateSandbox, SandboxStatus
from cellbox.store.base import SandboxRow, Store
from cellbox.templates.catalogue import Template
from cellbox.templates.guest_program import guest_argv, machine_env
from cellbox.templates.templates import Templates
from cellbox.wire import messages

_REAP_SECONDS = 0.5  # how late a TTL may be noticed; the kill itself takes tens of milliseconds
_HELLO_SECONDS = 60.0  # a cold boot imports pandas on a busy host
_CONFIGURE_SECONDS = 30.0
_REMEMBERED_KILLS = 10_000  # ids for which a second DELETE is answered as done
_RESERVE_BYTES = 512 * 1024**2  # of host memory that no new sandbox may eat into, or a tenth of it all
_MB_PER_TASK = 4  # a fork bomb of Python costs 3.2 to 3.4 MB of guest memory for each process
_MAX_TASKS = 512  # enough for parallel builds; a guest process costs the host about two tasks and 0.6 MB

_log = structlog.stdlib.get_logger(__name__)


class Sandboxes:
    """The registry. Ids mean nothing without their owner: `find` treats a foreign id as an unknown one."""

    def __init__(
        self,
        *,
        settings: Settings,
        engine: Engine,
        templates: Templates,
        store: Store,
        workspaces: Workspaces,
        tasks: Tasks,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._templates = templates
        self._store = store
        self._workspaces = workspaces
        self._tasks = tasks
        self._live: dict[str, LiveSandbox] = {}
        self._starting: Counter[str] = Counter()
        self._killed: OrderedDict[str, str] = OrderedDict()
        self._enforced: dict[str, bool] = {}
        self._baking: set[str] = set()
        self._broken: dict[str, str] = {}
        self._engine_is_started = False
        self._engine_gate = asyncio.Lock()
        self.boots: Counter[str] = Counter()
        """How many sandboxes were made, by boot mode."""

    async def start(self) -> None:
        """Sweep what an earlier daemon left and begin to reap. An unfit engine is reported at create, not here."""
        with contextlib.suppress(errors.EngineUnavailableError):
            await self.ensure_engine()
        self._tasks.start(self._reap(), name="reaper")

    async def aclose(self) -> None:
        """Kill every sandbox."""
        await asyncio.gather(*(self._end(sandbox) for sandbox in list(self._live.values())))

    async def ensure_engine(self) -> None:
        """Start the engine if that has not worked yet. Raises `EngineUnavailableError` with the reason."""
        if self._engine_is_started:
            return
        async with self._engine_gate:
            if self._engine_is_started:
                return
            try:
                await self._engine.start()
            except errors.EngineUnavailableError as error:
                raise errors.EngineUnavailableError(
                    error.message, detail=error.detail or "`cellbox doctor` on that host says what to do"
                ) from error
            swept = await self._engine.sweep()
            for row in await self._store.list_sandboxes():
                await self._store.delete_sandbox(row.id)
            if swept:
                _log.info("swept machines of an earlier daemon", count=len(swept))
            probe = await self._engine.probe()
            self._enforced = {**probe.enforced, "disk": True}
            self._engine_is_started = True

    def list(self, owner: str) -> list[LiveSandbox]:
        """Return the owner's sandboxes, newest first."""
        return [sandbox for sandbox in reversed(self._live.values()) if sandbox.owner == owner]

    def find(self, owner: str, sandbox_id: str) -> LiveSandbox:
        sandbox = self._live.get(sandbox_id)
        if sandbox is None or sandbox.owner != owner:
            raise errors.SandboxNotFoundError(
                f"no sandbox {sandbox_id[:64]!r}: it was killed, has expired or never was"
            )
        return sandbox

    def count(self) -> int:
        """How many there are, of all owners."""
        return len(self._live)

    async def create(self, owner: str, request: CreateSandbox, *, hold: Hold | None = None) -> LiveSandbox:
        """Make a sandbox that is ready to run code, or leave nothing behind.

        `hold`: mounts in place of those that the request names; released in any case.
        """
        arrived = time.monotonic()
        try:
            _check(request)
            await self.ensure_engine()
            template = self._templates.get(request.template)
            self._admit(owner)
            self._starting[owner] += 1
            try:
                return await self._create(owner, request, template, arrived, hold)
            finally:
                self._starting[owner] -= 1
        except BaseException:
            if hold is not None:
                await hold.release()
            raise

    async def kill(self, owner: str, sandbox_id: str) -> None:
        """Kill and forget. Doing it again is no error for the owner."""
        try:
            sandbox = self.find(owner, sandbox_id)
        except errors.SandboxNotFoundError:
            if self._killed.get(sandbox_id) == owner:
                return
            raise
        await self._end(sandbox)

    def _ttl_seconds(self, wanted: float | None) -> float:
        limit = self._settings.max_ttl_seconds
        if wanted is not None and wanted > limit:
            raise errors.InvalidRequestError(f"ttl_seconds exceeds tier maximum of {limit:g}")
        return wanted if wanted is not None else min(self._settings.default_ttl_seconds, limit)

    def _admit(self, owner: str) -> None:
        """Refuse before anything is made: clients may safely try again."""
        settings = self._settings
        own = len(self.list(owner)) + self._starting[owner]
        if own >= settings.max_sandboxes_per_owner:
            raise errors.QuotaExceededError(
                f"max sandboxes reached: you have {own} of {settings.max_sandboxes_per_owner}; kill one first",
                details={"quota": "max_sandboxes_per_owner", "max": settings.max_sandboxes_per_owner, "active": own},
            )
        if len(self._live) + self._starting.total() >= settings.max_sandboxes:
            raise errors.CapacityError(
                f"this host runs its limit of {settings.max_sandboxes} sandboxes", retry_after_seconds=5
            )
        total, available = _host_memory()
        if available < max(_RESERVE_BYTES, total // 10):
            raise errors.CapacityError(
                f"this host has {available // 1024**2} MiB of memory left", retry_after_seconds=5
            )

    async def _create(
        self, owner: str, request: CreateSandbox, template: Template, arrived: float, hold: Hold | None
    ) -> LiveSandbox:
        ttl_seconds = self._ttl_seconds(request.ttl_seconds)
        spec = _machine_spec(request, template)
        if hold is None:
            hold = await self._workspaces.hold(owner, spec.machine_id, request)
        now = time.time()
        row = SandboxRow(
            id=spec.machine_id,
            owner=owner,
            template=template.name,
            template_digest=template.digest,
            status=str(SandboxStatus.RUNNING),
            request=msgspec.json.encode(request),
            created_at=now,
            expires_at=None if request.persistent else now + ttl_seconds,
            persistent=request.persistent,
            metadata=request.metadata,
        )
        # The row is written beside the start and awaited before the answer: nothing acknowledged is ever unknown to
        # the next daemon, and the disk's latency is hidden behind the engine's.
        saving = asyncio.ensure_future(self._store.save_sandbox(row))
        log = SandboxLog()
        machine: Machine | None = None
        guest: Guest | None = None
        try:
            await hold.attach()
            spec = replace(spec, attachments=hold.attachments)
            machine, link, boot_mode = await self._start(spec, template, log)
            guest = Guest(machine, link, can_freeze=self._enforced.get("freeze", False))
            configured = await link.ask(
                _configuration(request, template, spec, hold), messages.Configured, timeout_seconds=_CONFIGURE_SECONDS
            )
            await saving
        except BaseException:
            await asyncio.shield(self._undo(row.id, saving, machine, guest, hold))
            raise
        sandbox = LiveSandbox(
            row=row,
            request=request,
            spec=spec,
            guest=guest,
            log=log,
            store=self._store,
            ttl_seconds=ttl_seconds,
            max_ttl_seconds=self._settings.max_ttl_seconds,
            boot_mode=boot_mode,
            boot_ms=round((time.monotonic() - arrived) * 1000, 1),
            engine=self._engine.name,
            enforced=self._enforced,
            limitations=[*configured.problems, *self._workspaces.limitations(hold)],
            hold=hold,
        )
        self._live[sandbox.id] = sandbox
        self.boots[boot_mode] += 1
        self._tasks.start(self._watch(sandbox), name=f"watch {sandbox.id}")
        return sandbox

    async def _start(self, spec: MachineSpec, template: Template, log: SandboxLog) -> tuple[Machine, GuestLink, str]:
        """Restore the template's baked snapshot; boot when there is none that fits, or it can't be restored."""
        image = self._templates.baked_image(template)
        if image is None:
            self._bake_later(template)
        else:
            try:
                machine = await self._engine.restore(spec, image)
                return machine, self._link(machine, log), "snapshot"
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
            link.close(errors.GuestError("the guest did not come up"))
            await asyncio.shield(machine.kill())
            if isinstance(error, TimeoutError):
                raise errors.GuestError(f"the guest did not come up: {log.text(tail=5)[:500]}") from None
            raise
        return machine, link, "cold"

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

    async def _undo(
        self,
        sandbox_id: str,
        saving: asyncio.Future[None],
        machine: Machine | None,
        guest: Guest | None,
        hold: Hold,
    ) -> None:
        self._broken.pop(sandbox_id, None)
        if guest is not None:
            guest.end(errors.GuestError("the sandbox could not be configured"))
        if machine is not None:
            await machine.kill()
        await hold.release()
        await asyncio.gather(saving, return_exceptions=True)
        with contextlib.suppress(errors.APIError):  # the failure that led here is the one to tell
            await self._store.delete_sandbox(sandbox_id)

    async def _watch(self, sandbox: LiveSandbox) -> None:
        ending = await sandbox.guest.machine.wait()
        await sandbox.hold.release()
        broken = self._broken.pop(sandbox.id, None)
        if sandbox.status is SandboxStatus.RUNNING:
            cause, detail = ("protocol_error", broken) if broken else (str(ending.cause), ending.detail)
            _log.warning("sandbox failed", sandbox_id=sandbox.id, cause=cause, detail=detail)
            sandbox.fail(cause, detail)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(_REAP_SECONDS)
            now = time.monotonic()
            for sandbox in list(self._live.values()):
                if sandbox.deadline is not None and now >= sandbox.deadline:
                    _log.info("sandbox expired", sandbox_id=sandbox.id)
                    self._tasks.start(self._end(sandbox), name=f"reap {sandbox.id}")

    async def _end(self, sandbox: LiveSandbox) -> None:
        # Out of the registry first: from now on the id is unknown, and a second caller finds nothing to do.
        if self._live.pop(sandbox.id, None) is not None:
            self._killed[sandbox.id] = sandbox.owner
            while len(self._killed) > _REMEMBERED_KILLS:
                self._killed.popitem(last=False)
            sandbox.stop()
        await asyncio.gather(sandbox.guest.machine.kill(), self._store.delete_sandbox(sandbox.id))
        await sandbox.hold.release()


def _check(request: CreateSandbox) -> None:
    check_metadata(request.metadata)
    if request.from_snapshot is not None:
        raise errors.InvalidRequestError("this version has no snapshots: leave `from_snapshot` out")
    for name in request.env:
        if not name or "=" in name or "\0" in name or "\0" in request.env[name]:
            raise errors.InvalidRequestError(f"{name[:64]!r} can't be the name of an environment variable")


def _machine_spec(request: CreateSandbox, template: Template) -> MachineSpec:
    memory_mb = request.memory_mb or template.memory_mb
    disk_mb = request.disk_mb or (round(request.disk_gb * 1024) if request.disk_gb else template.disk_mb)
    return MachineSpec(
        machine_id=str(uuid.uuid4()),
        rootfs=template.rootfs,
        argv=guest_argv(),
        env=machine_env(template.env),
        memory_mb=memory_mb,
        disk_mb=disk_mb,
        cpu=request.cpu or template.cpu,
        tasks=min(memory_mb // _MB_PER_TASK, _MAX_TASKS),
    )


def _configuration(request: CreateSandbox, template: Template, spec: MachineSpec, hold: Hold) -> messages.Configure:
    return messages.Configure(
        hostname=f"sandbox-{spec.machine_id[:8]}",
        memory_mb=spec.memory_mb,
        disk_mb=spec.disk_mb,
        tasks=spec.tasks,
        cpus=math.ceil(spec.cpu),
        entropy=secrets.token_hex(32),
        env={**template.env, **request.env},
        start_command="" if hold.files_root else template.start_command,
        attached=hold.attached,
        read_only=hold.read_only,
        files_root=hold.files_root,
    )


def _host_memory() -> tuple[int, int]:
    """Return the host's total and available memory in bytes."""
    fields: dict[str, int] = {}
    for line in Path("/proc/meminfo").read_text().splitlines()[:3]:
        name, value = line.split()[:2]
        fields[name] = int(value) * 1024
    return fields["MemTotal:"], fields["MemAvailable:"]
