"""Sandboxes that are ready before anyone asks for them: restored, configured, warmed up, and frozen.

What such a create waits for is a thaw and one message to the guest, whose answer is also the proof that the machine
lives. A machine is handed out once and is then its owner's alone; nothing of anyone's ran in it before. Whatever a
request asks for that must hold from the first instruction on and that a ready machine does not have, makes the create
go its usual way.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from cellbox import errors
from cellbox.control import host
from cellbox.control.guest import Connection
from cellbox.control.logs import SandboxLog
from cellbox.control.machines import Machines, Started
from cellbox.control.pool_sizes import ANY_TEMPLATE, Demand, checked, shape_of, size_of, wanted
from cellbox.control.requests import configuration, machine_spec
from cellbox.engines.base import EngineFault, MachineSpec
from cellbox.protocol.pool import PoolEntry, PoolSize, PoolStatus
from cellbox.protocol.sandboxes import CreateSandbox
from cellbox.templates.catalogue import Template
from cellbox.templates.templates import Templates
from cellbox.wire import messages

_LOOK_SECONDS, _IDLE_LOOK_SECONDS = 1.0, 10.0
"""Between two looks at the host's memory, at templates and at demand that has faded; while the pool is empty."""
_QUIET_SECONDS = 0.15
"""The pool is filled so long after the last create: its first cell runs in that time."""
_PATIENCE_SECONDS = 5.0
"""Where it never gets quiet, the pool is filled nevertheless, one machine in such a time."""
_RETRY_SECONDS = 30.0
_HAND_OVER_SECONDS = 5.0
"""The answer takes a millisecond, on a host on its knees a hundred. What needs longer is taken for dead."""
_ROOMY = 1.5
"""The pool grows while so many times the host's reserve is free, and shrinks when less than the next figure is."""
_TIGHT = 1.2
_LATE_FIELDS = (
    "template",
    "ttl_seconds",
    "persistent",
    "metadata",
    "env",
    "cpu",
    "memory_mb",
    "disk_mb",
    "disk_gb",
)
"""What a request may say and still be served by a ready machine: shapes are compared, the rest is given at hand-out.
Any other field that is not at its default, also one added later, leads past the pool."""

_log = structlog.stdlib.get_logger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Prepared:
    """A machine whose guest is configured and waits for its owner."""

    spec: MachineSpec
    connection: Connection
    log: SandboxLog
    configured: messages.Configured
    is_frozen: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class _Ready:
    prepared: Prepared
    template: Template
    shape: MachineSpec
    rootfs: tuple[int, int]
    watch: asyncio.Task[None]


class NotReadyError(Exception):
    """A ready machine did not answer. It is gone; take another."""


class Pool:
    """The ready machines of one daemon."""

    def __init__(
        self,
        *,
        sizes: dict[str, PoolSize],
        templates: Templates,
        machines: Machines,
        can_freeze: Callable[[], bool],
        is_busy: Callable[[], bool],
        has_room: Callable[[], bool],
    ) -> None:
        """
        Args:
            can_freeze: whether this host can freeze machines.
            is_busy: whether something is being created or used now.
            has_room: whether the host may have one machine more.
        """
        self._sizes = dict(sizes)
        self._templates = templates
        self._machines = machines
        self._can_freeze = can_freeze
        self._is_busy = is_busy
        self._has_room = has_room
        self._demand = Demand()
        self._ready: list[_Ready] = []
        self._filled_at = -_PATIENCE_SECONDS
        self._not_before = 0.0
        self._waits_for = ""
        self._last_create = 0.0
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self.counts: Counter[str] = Counter()
        """`hits`, `misses`, `unfit` and `given_back` since the daemon's start."""

    @property
    def ready(self) -> int:
        """How many wait to be handed out."""
        return len(self._ready)

    def start(self) -> None:
        """Begin to keep machines ready. To be called once the engine is started."""
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="pool")
        self._wake.set()

    async def aclose(self) -> None:
        """Remove every ready machine. What was handed out belongs to others."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        await self._remove(list(self._ready))

    def resize(self, sizes: dict[str, PoolSize]) -> None:
        """Put other sizes in force. Raises `InvalidRequestError` for one that can't be meant."""
        self._sizes = {name: checked(name, size) for name, size in sizes.items()}
        self._not_before = 0.0
        self._wake.set()

    # ------------------------------------------------------------------------------------------------- handing out

    def pop(self, request: CreateSandbox, template: Template, spec: MachineSpec) -> Prepared | None:
        """Take a machine out that can be what the request asks for, or None. It is the caller's alone from now on."""
        if not is_plain(request):
            return None
        size = size_of(template.name, self._sizes, template.label.pool)
        if not size.max and not self._ready:
            return None
        shape = shape_of(spec)
        self._demand.note(template.name, shape)
        self._last_create = time.monotonic()
        self._wake.set()
        rootfs = _identity(template)
        found = next((one for one in self._ready if one.shape == shape and one.rootfs == rootfs), None)
        if found is None:
            self.counts["misses"] += 1 if size.max else 0
            return None
        self._ready.remove(found)
        found.watch.cancel()
        return found.prepared

    async def hand_over(self, prepared: Prepared, env: dict[str, str], start_command: str) -> Started:
        """Make a machine that was taken out its new owner's. Raises `NotReadyError` when it is of no use, and gone."""
        request = messages.HandOver(env=env, start_command=start_command)
        machine, link = prepared.connection
        try:
            if prepared.is_frozen:
                await machine.resume()
            await link.ask(request, messages.Done, timeout_seconds=_HAND_OVER_SECONDS)
        except (errors.APIError, EngineFault) as error:
            self.counts["unfit"] += 1
            _log.warning("a ready sandbox was of no use", sandbox_id=prepared.spec.machine_id, reason=str(error)[:500])
            await self._machines.discard(prepared.connection)
            raise NotReadyError from error
        except asyncio.CancelledError:
            await self._machines.discard(prepared.connection)
            raise
        self.counts["hits"] += 1
        return prepared.connection, prepared.configured, "pool"

    async def give_back(self) -> None:
        """Free the memory of every ready machine: somebody needs it now."""
        self.counts["given_back"] += len(self._ready)
        await self._remove(list(self._ready))

    # ----------------------------------------------------------------------------------------------------- keeping

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS if self._ready or self._waits_for else _IDLE_LOOK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._look()
            except Exception as error:  # whatever it is, the pool goes on: without it every create is slower
                self._not_before = time.monotonic() + _RETRY_SECONDS
                self._waits_for = f"a fault: {str(error)[:300]}"
                _log.warning("the pool could not be filled", reason=str(error)[:500], kind=type(error).__name__)

    async def _look(self) -> None:
        """Remove what is not wanted any more, and fill what is missing while that disturbs nobody."""
        total, available = host.memory()
        if self._ready and available < host.reserve_bytes(total) * _TIGHT:
            self.counts["given_back"] += 1
            _log.info("host memory runs short: a ready sandbox is given back", available_bytes=available)
            await self._remove([self._ready[0]])
            self._wake.set()
            return
        missing = await self._settle()
        self._waits_for = self._obstacle(total, available) if missing else ""
        if missing and not self._waits_for:
            shape, template = missing[0]
            self._filled_at = time.monotonic()
            await self._fill(shape, template)
            self._wake.set()

    def _obstacle(self, total: int, available: int) -> str:
        now = time.monotonic()
        if now < self._not_before:
            return self._waits_for or "a fault"
        if available < host.reserve_bytes(total) * _ROOMY:
            return "memory"
        if not self._has_room():
            return "room"
        is_quiet = not self._is_busy() and now - self._last_create >= _QUIET_SECONDS
        if is_quiet or now - max(self._filled_at, self._last_create) >= _PATIENCE_SECONDS:
            return ""
        asyncio.get_running_loop().call_later(_QUIET_SECONDS, self._wake.set)
        return "quiet"

    async def _settle(self) -> list[tuple[MachineSpec, Template]]:
        """Remove ready machines that are not wanted; returns what is missing."""
        spare = list(self._ready)
        missing: list[tuple[MachineSpec, Template]] = []
        for template, shape in self._wanted():
            rootfs = _identity(template)
            found = next((one for one in spare if one.shape == shape and one.rootfs == rootfs), None)
            if found is not None:
                spare.remove(found)
            else:
                missing.append((shape, template))
        await self._remove(spare)
        return missing

    def _wanted(self) -> list[tuple[Template, MachineSpec]]:
        found: list[tuple[Template, MachineSpec]] = []
        for template in self._templates.list():
            size = size_of(template.name, self._sizes, template.label.pool)
            if size.max:
                shapes = wanted(
                    size, shape_of(machine_spec(CreateSandbox(), template)), self._demand.latest(template.name)
                )
                found += [(template, shape) for shape in shapes]
        return found

    async def _fill(self, shape: MachineSpec, template: Template) -> None:
        template = self._templates.get(template.name)
        await self._templates.bake(template)  # nothing to do where there is a snapshot
        spec = replace(shape, machine_id=str(uuid.uuid4()))
        log = SandboxLog()
        configure = replace(configuration(CreateSandbox(), template, spec), ahead=True, start_command="")
        connection, configured, _ = await self._machines.start(spec, template, configure, log)
        prepared = Prepared(spec=spec, connection=connection, log=log, configured=configured)
        try:
            if self._can_freeze():
                await connection[0].pause()
                prepared.is_frozen = True
            watch = asyncio.get_running_loop().create_task(self._watch(prepared))
        except BaseException:
            await self._machines.discard(prepared.connection)
            raise
        self._ready.append(
            _Ready(prepared=prepared, template=template, shape=shape, rootfs=_identity(template), watch=watch)
        )

    async def _watch(self, prepared: Prepared) -> None:
        """Forget a machine that ends by itself while it waits."""
        ending = await prepared.connection[0].wait()
        _log.warning("a ready sandbox ended", sandbox_id=prepared.spec.machine_id, detail=ending.detail)
        self._ready = [one for one in self._ready if one.prepared is not prepared]
        self._wake.set()
        await self._machines.discard(prepared.connection)

    async def _remove(self, doomed: list[_Ready]) -> None:
        self._ready = [one for one in self._ready if one not in doomed]
        for one in doomed:
            one.watch.cancel()
        await asyncio.shield(asyncio.gather(*(self._machines.discard(one.prepared.connection) for one in doomed)))

    # ------------------------------------------------------------------------------------------------------ telling

    async def status(self) -> PoolStatus:
        """What there is, what is wanted, and how it has served. Measures the ready ones."""
        entries: list[PoolEntry] = []
        goal = self._wanted()
        held = [(one.template, one.shape) for one in self._ready]
        seen: list[tuple[str, MachineSpec]] = []
        for template, shape in [*goal, *held]:
            key = (template.digest, shape)
            if key in seen:
                continue
            seen.append(key)
            entries.append(
                PoolEntry(
                    template=template.name,
                    template_digest=template.digest,
                    cpu=shape.cpu,
                    memory_mb=shape.memory_mb,
                    disk_mb=shape.disk_mb,
                    ready=sum((other.digest, spec) == key for other, spec in held),
                    wanted=sum((other.digest, spec) == key for other, spec in goal),
                )
            )
        return PoolStatus(
            entries=entries,
            sizes=self._sizes,
            ready=self.ready,
            memory_bytes=await self._memory_bytes(),
            hits=self.counts["hits"],
            misses=self.counts["misses"],
            unfit=self.counts["unfit"],
            given_back=self.counts["given_back"],
            unknown=sorted(self._unknown()),
            waits_for=self._waits_for,
        )

    def _unknown(self) -> set[str]:
        return set(self._sizes) - {ANY_TEMPLATE} - {template.name for template in self._templates.list()}

    async def _memory_bytes(self) -> int:
        used = 0
        for one in list(self._ready):
            with contextlib.suppress(EngineFault):  # it ended a moment ago
                used += (await one.prepared.connection[0].usage()).memory_bytes
        return used


def is_plain(request: CreateSandbox) -> bool:
    """Whether a ready machine of the right shape can be all that a request asks for."""
    return request == CreateSandbox(**{name: getattr(request, name) for name in _LATE_FIELDS})


def _identity(template: Template) -> tuple[int, int]:
    """What tells a root filesystem from another one that was put in its place."""
    try:
        status = template.rootfs.stat()
    except OSError:
        return (0, 0)
    return status.st_dev, status.st_ino
