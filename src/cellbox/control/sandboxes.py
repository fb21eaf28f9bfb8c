"""All sandboxes of this daemon: create, find, kill, reap at their TTL, and sweep what an earlier daemon left."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import structlog

from cellbox import errors
from cellbox.control import host
from cellbox.control.clock import LifeClock
from cellbox.control.guest import Connection, Guest
from cellbox.control.hibernation import Hibernation
from cellbox.control.journal import Journals
from cellbox.control.logs import SandboxLog
from cellbox.control.machines import Machines, Started
from cellbox.control.pool import NotReadyError, Pool, Prepared
from cellbox.control.pool_sizes import parse_sizes
from cellbox.control.requests import check_request, configuration, machine_spec, renewal
from cellbox.control.sandbox import Birth, Host, LiveSandbox
from cellbox.control.settings import Settings
from cellbox.control.snapshots import Snapshots
from cellbox.control.tasks import Tasks
from cellbox.control.workspaces import Hold, Workspaces
from cellbox.engines.base import Engine, Machine, MachineSpec
from cellbox.protocol.sandboxes import CreateSandbox, SandboxStatus
from cellbox.store.base import SandboxRow, Store
from cellbox.templates.catalogue import Template
from cellbox.templates.templates import Templates

_REAP_SECONDS = 0.5  # how late a TTL may be noticed; the kill itself takes tens of milliseconds
_RETRY_SECONDS = 60.0  # until a sandbox that could not be hibernated is tried again
_REMEMBERED_KILLS = 10_000  # ids for which a second DELETE is answered as done

_log = structlog.stdlib.get_logger(__name__)

Start = Callable[[MachineSpec, Hold, SandboxLog], Awaitable[Started]]


class Sandboxes:
    """The registry. Ids mean nothing without their owner: `find` treats a foreign id as an unknown one."""

    def __init__(
        self,
        *,
        settings: Settings,
        engine: Engine,
        templates: Templates,
        store: Store,
        journals: Journals,
        workspaces: Workspaces,
        tasks: Tasks,
        machines: Machines,
        snapshots: Snapshots,
        hibernation: Hibernation,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._templates = templates
        self._store = store
        self._journals = journals
        self._tasks = tasks
        self._live: dict[str, LiveSandbox] = {}
        self._starting: Counter[str] = Counter()
        self._killed: OrderedDict[str, str] = OrderedDict()
        self._enforced: dict[str, bool] = {}
        self._workspaces = workspaces
        self._machines = machines
        self._snapshots = snapshots
        self._hibernation = hibernation
        self._retiring: set[str] = set()
        self._host: Host
        self._engine_is_started = False
        self._engine_gate = asyncio.Lock()
        self.boots: Counter[str] = Counter()
        """How many sandboxes were made, by boot mode."""
        self.pool = Pool(
            sizes=parse_sizes(settings.pool),
            templates=templates,
            machines=machines,
            can_freeze=lambda: self._enforced.get("freeze", False),
            is_busy=lambda: bool(self._starting.total()) or any(one.guest.is_used for one in self._live.values()),
            has_room=lambda: len(self._live) + self._starting.total() + self.pool.ready < settings.max_sandboxes,
        )

    async def start(self) -> None:
        """Sweep what an earlier daemon left and begin to reap. An unfit engine is reported at create, not here."""
        with contextlib.suppress(errors.EngineUnavailableError):
            await self.ensure_engine()
        self._tasks.start(self._reap(), name="reaper")

    async def aclose(self) -> None:
        """End every sandbox; persistent ones are hibernated, and stay as the hibernated ones do."""
        await self.pool.aclose()
        await asyncio.gather(*(self._leave(sandbox) for sandbox in list(self._live.values())))

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
            if swept:
                _log.info("swept machines of an earlier daemon", count=len(swept))
            probe = await self._engine.probe()
            self._enforced = {**probe.enforced, "disk": True}
            self._host = Host(
                store=self._store,
                settings=self._settings,
                journals=self._journals,
                engine=self._engine.name,
                enforced=self._enforced,
            )
            await self._find_hibernated()
            self._engine_is_started = True
            self.pool.start()

    async def _find_hibernated(self) -> None:
        """Take in what an earlier daemon put on disk; rows of what ran then mean nothing any more."""
        for row in reversed(await self._store.list_sandboxes()):
            hold = await self._workspaces.hold(row.owner, row.id, CreateSandbox())
            sandbox = await self._hibernation.find(row, self._host, self._guest(row.id, None), hold)
            if sandbox is not None:
                self._live[row.id] = sandbox
            else:
                await self._store.delete_sandbox(row.id)

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
        """How many there are in memory, of all owners."""
        return len(self._live) - self.count_hibernated()

    def count_hibernated(self) -> int:
        """How many there are on the disk, of all owners."""
        return sum(sandbox.status is SandboxStatus.HIBERNATED for sandbox in self._live.values())

    async def create(self, owner: str, request: CreateSandbox, *, hold: Hold | None = None) -> LiveSandbox:
        """Make a sandbox that is ready to run code, or leave nothing behind.

        `hold`: mounts in place of those that the request names; released in any case.
        """
        try:
            return await self._create(owner, request, hold)
        except BaseException:
            if hold is not None:
                await hold.release()
            raise

    async def _create(self, owner: str, request: CreateSandbox, given: Hold | None) -> LiveSandbox:
        arrived = time.monotonic()
        check_request(request)
        await self.ensure_engine()
        if request.from_snapshot is not None:
            return await self._create_from_snapshot(owner, request, request.from_snapshot, arrived)
        template = self._templates.get(request.template)
        spec = machine_spec(request, template)

        make = partial(
            self._make,
            owner=owner,
            request=request,
            template=template.name,
            template_digest=template.digest,
            ttl_seconds=self.ttl_seconds(request.ttl_seconds),
            arrived=arrived,
        )

        async def start(spec: MachineSpec, hold: Hold, log: SandboxLog) -> Started:
            return await self._machines.start(spec, template, configuration(request, template, spec, hold), log)

        with self._reserved(owner):
            while given is None and (ready := self.pool.pop(request, template, spec)) is not None:
                with contextlib.suppress(NotReadyError):
                    return await make(
                        _handing_over(self.pool, ready, request, template), spec=ready.spec, log=ready.log
                    )
            await self._admit_machine()
            return await make(start, spec=spec, hold=given)

    async def _create_from_snapshot(
        self, owner: str, request: CreateSandbox, snapshot_id: str, arrived: float
    ) -> LiveSandbox:
        if request.env:
            raise errors.InvalidRequestError("a snapshot keeps the environment it has: leave `env` out")
        if request.workspace or request.volumes:
            raise errors.InvalidRequestError("a snapshot has no mounts: leave `workspace` and `volumes` out")
        async with self.reserved(owner):
            image = await self._snapshots.open(owner, snapshot_id)
            manifest = image.manifest
            spec = self._machines.spec_of(manifest, str(uuid.uuid4()))

            async def start(spec: MachineSpec, _hold: Hold, log: SandboxLog) -> Started:
                renew = renewal(spec.machine_id)
                connection, configured = await self._machines.restore(spec, image.path, log, renew)
                return connection, configured, "snapshot"

            return await self._make(
                start,
                owner=owner,
                request=request,
                template=manifest.template,
                template_digest=manifest.template_digest,
                spec=spec,
                ttl_seconds=self.ttl_seconds(request.ttl_seconds),
                arrived=arrived,
            )

    async def make_child(
        self, parent: LiveSandbox, image: Path, metadata: dict[str, str], ttl_seconds: float, arrived: float
    ) -> LiveSandbox:
        """Make a sandbox from an image of `parent` that was just saved, within room that is `reserved`."""
        spec = replace(parent.spec, machine_id=str(uuid.uuid4()))
        request = CreateSandbox(template=parent.template, ttl_seconds=parent.request.ttl_seconds, metadata=metadata)

        async def start(spec: MachineSpec, _hold: Hold, log: SandboxLog) -> Started:
            connection, configured = await self._machines.restore(spec, image, log, renewal(spec.machine_id))
            return connection, configured, "fork"

        return await self._make(
            start,
            owner=parent.owner,
            request=request,
            template=parent.template,
            template_digest=parent.template_digest,
            spec=spec,
            ttl_seconds=ttl_seconds,
            arrived=arrived,
            forked_from=parent.id,
        )

    async def kill(self, owner: str, sandbox_id: str) -> None:
        """Kill and forget. Doing it again is no error for the owner."""
        try:
            sandbox = self.find(owner, sandbox_id)
        except errors.SandboxNotFoundError:
            if self._killed.get(sandbox_id) == owner:
                return
            raise
        await self._end(sandbox)

    async def hibernate(self, sandbox: LiveSandbox) -> None:
        """Put it on disk. Idempotent."""
        await self._hibernation.hibernate(sandbox)

    async def wake(self, sandbox: LiveSandbox) -> None:
        """Bring it back from the disk. Idempotent. Raises `SandboxNotRunningError` when it is paused."""
        await sandbox.guest.wake()
        if sandbox.status is not SandboxStatus.RUNNING:
            raise sandbox.gone()

    def ttl_seconds(self, wanted: float | None, *, default: float | None = None) -> float:
        """Return the TTL that a new sandbox gets. Raises `InvalidRequestError` beyond the limit."""
        limit = self._settings.max_ttl_seconds
        if wanted is not None and wanted > limit:
            raise errors.InvalidRequestError(f"ttl_seconds exceeds tier maximum of {limit:g}")
        if wanted is not None:
            return wanted
        return min(default if default is not None else self._settings.default_ttl_seconds, limit)

    @contextlib.asynccontextmanager
    async def reserved(self, owner: str, count: int = 1) -> AsyncGenerator[None]:
        """Hold room for new sandboxes while they are made. Raises `QuotaExceededError`, `CapacityError`."""
        with self._reserved(owner, count):
            await self._admit_machine()
            yield

    @contextlib.contextmanager
    def _reserved(self, owner: str, count: int = 1) -> Generator[None]:
        self._admit(owner, count)
        self._starting[owner] += count
        try:
            yield
        finally:
            self._starting[owner] -= count

    def _admit(self, owner: str, count: int) -> None:
        """Refuse before anything is made: clients may safely try again."""
        settings = self._settings
        own = len(self.list(owner)) + self._starting[owner]
        if own + count > settings.max_sandboxes_per_owner:
            raise errors.QuotaExceededError(
                f"max sandboxes reached: you have {own} of {settings.max_sandboxes_per_owner}; kill one first",
                details={"quota": "max_sandboxes_per_owner", "max": settings.max_sandboxes_per_owner, "active": own},
            )
        if len(self._live) + self._starting.total() + count > settings.max_sandboxes:
            raise errors.CapacityError(
                f"this host runs its limit of {settings.max_sandboxes} sandboxes", retry_after_seconds=5
            )

    async def _admit_machine(self) -> None:
        """Refuse a machine more when the host has no memory for it, not even that of the pool."""
        total, available = host.memory()
        if available < host.reserve_bytes(total) and self.pool.ready:
            await self.pool.give_back()
            total, available = host.memory()
        if available < host.reserve_bytes(total):
            raise errors.CapacityError(
                f"this host has {available // 1024**2} MiB of memory left", retry_after_seconds=5
            )

    async def _make(
        self,
        start: Start,
        *,
        owner: str,
        request: CreateSandbox,
        template: str,
        template_digest: str,
        spec: MachineSpec,
        ttl_seconds: float,
        arrived: float,
        forked_from: str | None = None,
        hold: Hold | None = None,
        log: SandboxLog | None = None,
    ) -> LiveSandbox:
        """Write the row, start the machine and let the sandbox in, or leave nothing behind."""
        if hold is None:
            hold = await self._workspaces.hold(owner, spec.machine_id, request)
        now = time.time()
        row = SandboxRow(
            id=spec.machine_id,
            owner=owner,
            template=template,
            template_digest=template_digest,
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
        log = log or SandboxLog()
        connection: Connection | None = None
        try:
            await hold.attach()
            spec = replace(spec, attachments=hold.attachments)
            connection, configured, boot_mode = await start(spec, hold, log)
            await saving
        except BaseException:
            await asyncio.shield(self._undo(row.id, saving, connection, hold))
            raise
        birth = Birth(
            boot_mode=boot_mode,
            boot_ms=round((time.monotonic() - arrived) * 1000, 1),
            forked_from=forked_from,
            limitations=[*configured.problems, *self._workspaces.limitations(hold)],
            tools=self._templates.tools(template),
        )
        sandbox = LiveSandbox(
            host=self._host,
            row=row,
            request=request,
            spec=spec,
            guest=self._guest(row.id, connection),
            log=log,
            clock=LifeClock(ttl_seconds),
            birth=birth,
            hold=hold,
        )
        self._live[sandbox.id] = sandbox
        self.boots[boot_mode] += 1
        self._watch_later(sandbox, connection[0])
        return sandbox

    def _guest(self, sandbox_id: str, connection: Connection | None) -> Guest:
        async def wake() -> Connection:
            back = await self._hibernation.wake(self._live[sandbox_id], self._watch_later)
            self.boots["wake"] += 1
            return back

        return Guest(connection, can_freeze=self._enforced.get("freeze", False), wake=wake)

    async def _undo(
        self, sandbox_id: str, saving: asyncio.Future[None], connection: Connection | None, hold: Hold
    ) -> None:
        if connection is not None:
            await self._machines.discard(connection)
        await hold.release()
        await asyncio.gather(saving, return_exceptions=True)
        with contextlib.suppress(errors.APIError):  # the failure that led here is the one to tell
            await self._store.delete_sandbox(sandbox_id)

    def _watch_later(self, sandbox: LiveSandbox, machine: Machine) -> None:
        self._tasks.start(self._watch(sandbox, machine), name=f"watch {sandbox.id}")

    async def _watch(self, sandbox: LiveSandbox, machine: Machine) -> None:
        ending = await machine.wait()
        await sandbox.hold.release()  # one that has mounts is never hibernated
        await sandbox.guest.settled()
        broken = self._machines.broken(machine)
        is_its_own = sandbox.guest.machine is machine  # not one that was hibernated
        if is_its_own and sandbox.status in (SandboxStatus.RUNNING, SandboxStatus.PAUSED):
            cause, detail = ("protocol_error", broken) if broken else (str(ending.cause), ending.detail)
            _log.warning("sandbox failed", sandbox_id=sandbox.id, cause=cause, detail=detail)
            sandbox.fail(cause, detail)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(_REAP_SECONDS)
            for sandbox in list(self._live.values()):
                if sandbox.id in self._retiring:
                    continue
                if sandbox.has_idled:
                    self._retire(sandbox)
                elif sandbox.is_expired:
                    keep = sandbox.on_timeout == "hibernate" and sandbox.status is SandboxStatus.RUNNING
                    _log.info("sandbox expired", sandbox_id=sandbox.id, hibernates=keep)
                    if keep:
                        self._retire(sandbox)
                    else:
                        self._tasks.start(self._end(sandbox), name=f"reap {sandbox.id}")

    def _retire(self, sandbox: LiveSandbox) -> None:
        self._retiring.add(sandbox.id)
        self._tasks.start(self._put_to_sleep(sandbox), name=f"hibernate {sandbox.id}")

    async def _put_to_sleep(self, sandbox: LiveSandbox) -> None:
        try:
            await self._hibernation.hibernate(sandbox)
        except errors.APIError as error:
            # What is in it was to be kept. It is tried again, and meanwhile its owner can still get at it.
            _log.warning("sandbox could not be hibernated", sandbox_id=sandbox.id, error=str(error)[:500])
            sandbox.log.say(f"the sandbox could not be hibernated: {error.message}")
            sandbox.clock.prolong(_RETRY_SECONDS)
        finally:
            self._retiring.discard(sandbox.id)

    async def _end(self, sandbox: LiveSandbox) -> None:
        # Out of the registry first: from now on the id is unknown, and a second caller finds nothing to do.
        if self._live.pop(sandbox.id, None) is not None:
            self._killed[sandbox.id] = sandbox.owner
            while len(self._killed) > _REMEMBERED_KILLS:
                self._killed.popitem(last=False)
            sandbox.stop()
        await asyncio.gather(sandbox.guest.kill(), self._store.delete_sandbox(sandbox.id))
        await sandbox.hold.release()
        await self._hibernation.forget(sandbox)

    async def _leave(self, sandbox: LiveSandbox) -> None:
        """The daemon ends: what is hibernated stays where it is, and what is persistent goes there."""
        if (
            sandbox.persistent
            and not sandbox.spec.attachments
            and sandbox.status in (SandboxStatus.RUNNING, SandboxStatus.PAUSED)
        ):
            try:
                await self._hibernation.hibernate(sandbox)
            except errors.APIError as error:
                _log.error("a persistent sandbox could not be saved", sandbox_id=sandbox.id, error=str(error)[:500])
        if sandbox.status is not SandboxStatus.HIBERNATED:
            await self._end(sandbox)


def _handing_over(pool: Pool, ready: Prepared, request: CreateSandbox, template: Template) -> Start:
    async def start(_spec: MachineSpec, _hold: Hold, _log: SandboxLog) -> Started:
        return await pool.hand_over(ready, request.env, template.start_command)

    return start
