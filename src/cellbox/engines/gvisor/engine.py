"""The gVisor engine: finds its binary, starts machines, and puts things right after a crash."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any

from cellbox.engines import mounts
from cellbox.engines.base import EngineFault, Machine, MachineSpec, Probe, Problem
from cellbox.engines.gvisor import advisories, attachments, install
from cellbox.engines.gvisor import probe as probes
from cellbox.engines.gvisor.cgroups import CgroupTree
from cellbox.engines.gvisor.commands import Commands, Runsc
from cellbox.engines.gvisor.launch import Launcher, become_subreaper
from cellbox.engines.gvisor.layout import Layout, check_machine_id
from cellbox.engines.gvisor.machine import GvisorMachine
from cellbox.engines.gvisor.processes import reap_strays
from cellbox.engines.gvisor.shells import Shells
from cellbox.engines.gvisor.spec import SHAPE
from cellbox.engines.gvisor.starts import Mode, Starter
from cellbox.engines.gvisor.traces import Traces, machine_ids, unmount_below
from cellbox.engines.gvisor.user_namespace import enter_user_namespace
from cellbox.errors import ConfigurationError, EngineUnavailableError

_START_WIDTH = max(2, os.cpu_count() or 1)
"""Machines started at once. A start waits for the kernel (RCU, cgroup moves) nearly half of its time.

Twelve restores with pandas on 2 cores, ms each: one at a time 181, two 129, four 128, six 121, while the median wait of
a caller is lowest with two (0.87 s against 1.13, 0.86 and 1.01).
"""

_SHELLS = 2
"""How many shells are kept (12.5 MB each): as many as can be started at once on a small host."""

_LOCK_DEADLINE_S = 2.0


class GvisorEngine:
    """Runs guests under gVisor's `runsc`; see `cellbox.engines.base.Engine` for the contract.

    Settings come from the environment unless given: `CELLBOX_RUNSC` names the binary,
    `CELLBOX_RUNSC_ALLOW_UNSUPPORTED=1` accepts one that is too old, and `CELLBOX_SHELLS` says how many empty machines
    are kept ready for the next starts (0: none).
    """

    name = "gvisor"

    def __init__(
        self,
        state: Path,
        *,
        runsc: Path | None = None,
        allow_unsupported: bool | None = None,
        start_width: int | None = None,
        shells: int | None = None,
    ) -> None:
        """`state` belongs to this installation alone; one process at a time drives it."""
        named = os.environ.get("CELLBOX_RUNSC")
        allowed = os.environ.get("CELLBOX_RUNSC_ALLOW_UNSUPPORTED") == "1"
        self._state = state
        self._explicit = runsc or (Path(named) if named else None)
        self._allow_unsupported = allowed if allow_unsupported is None else allow_unsupported
        self._width = start_width or _START_WIDTH
        self._shells = _shells_from_environment() if shells is None else shells
        self._machines: dict[str, GvisorMachine] = {}
        self._starting: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: _Ready | None = None
        self._turn = asyncio.Lock()

    @property
    def layout(self) -> Layout:
        """Where this installation keeps what belongs to its machines."""
        return Layout(self._state)

    @staticmethod
    def prepare_process() -> None:
        """Become root of a user namespace if this is an ordinary user's process, and have mounts of its own."""
        enter_user_namespace()
        try:
            mounts.enter_namespace()
        except OSError as error:
            raise EngineUnavailableError(
                f"the engine needs mounts of its own, and the host refuses: {error}"
            ) from error

    @staticmethod
    async def install(state: Path, report: Callable[[str], None] = lambda _: None) -> str:
        """Make sure there is a fit `runsc`, downloading one if need be; returns its version. Part of set-up."""
        launcher = Launcher(width=1)
        named = os.environ.get("CELLBOX_RUNSC")
        try:
            runsc = await install.ensure_runsc(launcher, state, explicit=Path(named) if named else None, report=report)
        finally:
            launcher.close()
        return runsc.version

    async def start(self) -> None:
        async with self._turn:
            if self._ready is not None:
                return
            become_subreaper()
            layout = Layout.make(self._state)
            ready = _Ready(layout, await _lock(layout))
            try:
                attachments.prepare(layout)
                runsc = await install.find_runsc(
                    ready.launcher, layout.state, explicit=self._explicit, allow_unsupported=self._allow_unsupported
                )
                findings = await self._examine(ready, runsc)
                ready.settle(runsc, findings, width=self._width, shells=self._shells)
            except BaseException:
                ready.close()
                raise
            self._ready = ready
            if not findings.usable:
                await self._close(ready)
                raise EngineUnavailableError(
                    "gVisor does not work on this host; `cellbox doctor` says more", detail="; ".join(findings.failures)
                )

    async def _examine(self, ready: _Ready, runsc: Runsc) -> probes.Findings:
        cache, key = ready.layout.state / "probe.json", probes.key_of(runsc)
        if (findings := probes.load(cache, key)) is not None:
            return findings
        starters: dict[Mode, Starter] = {}

        async def start(spec: MachineSpec, image: Path | None, mode: Mode) -> Machine:
            starter = starters.get(mode) or ready.starter(runsc, mode, width=1)
            starters[mode] = starter
            return await self._start_with(starter, spec, image)

        with tempfile.TemporaryDirectory(prefix="probe-", dir=ready.layout.state) as scratch:
            findings = await probes.examine(start, Path(scratch), key)
        if findings.usable:
            probes.save(cache, findings)
        return findings

    async def aclose(self) -> None:
        async with self._turn:
            if self._ready is not None:
                await self._close(self._ready)

    async def _close(self, ready: _Ready) -> None:
        self._ready = None
        if ready.shells is not None:
            await ready.shells.aclose()
        while self._machines or self._tasks:
            await asyncio.gather(*(machine.kill() for machine in list(self._machines.values())))
            if self._tasks:
                await asyncio.wait(list(self._tasks))
        ready.close()

    async def probe(self) -> Probe:
        try:
            await self.start()
        except EngineUnavailableError as error:
            problem = Problem(summary=str(error), fix="see the message; then run `cellbox doctor` again", fatal=True)
            return Probe(engine=self.name, version="", usable=False, problems=(problem,))
        ready = self._started()
        runsc = ready.runsc
        gated = advisories.is_supported(runsc.version)
        return probes.report(self.name, runsc, ready.findings, ready.tree, gated=gated)

    def image_key(self) -> str:
        runsc = self._started().runsc
        parts = [runsc.version, *runsc.wanted_flags(), f"shape={SHAPE}", _cpu_features()]
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
        return f"gvisor-{runsc.version}-{digest}"

    async def boot(self, spec: MachineSpec) -> Machine:
        return await self._start_with(self._started().chosen, spec, None)

    async def restore(self, spec: MachineSpec, image: Path) -> Machine:
        return await self._start_with(self._started().chosen, spec, image)

    async def _start_with(self, starter: Starter, spec: MachineSpec, image: Path | None) -> GvisorMachine:
        check_machine_id(spec.machine_id)
        if spec.machine_id in self._machines or spec.machine_id in self._starting:
            raise EngineFault(f"machine {spec.machine_id} exists already")
        self._starting.add(spec.machine_id)
        try:
            started = await starter.start(spec, image)
            machine = GvisorMachine(
                spec,
                started.channel,
                started.traces,
                socket=started.socket,
                checkpointer=starter.checkpoint,
                spawn=self._spawn,
                removed=self._forget,
            )
            self._machines[spec.machine_id] = machine
        finally:
            self._starting.discard(spec.machine_id)
        return machine

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forget(self, machine: GvisorMachine) -> None:
        self._machines.pop(machine.machine_id, None)

    async def sweep(self, keep: Collection[str] = ()) -> list[str]:
        ready = self._started()
        ours = {*keep, *self._own(ready)}
        ids = await asyncio.to_thread(machine_ids, ready.layout, ready.tree)
        ours.update(self._own(ready))  # what began or ended during the look was seen by half
        names = ready.layout.names()
        left = sorted(host_id for host_id in ids if host_id not in ours and names.get(host_id) not in ours)
        await asyncio.gather(*(self._sweep_one(ready, host_id, names.get(host_id)) for host_id in left))
        if not self._machines and not self._starting and not ready.chosen.nameless and not keep:
            unmount_below(ready.layout.root)
        return [names.get(host_id, host_id) for host_id in left]

    def _own(self, ready: _Ready) -> set[str]:
        """What this process has on the host now, by either name."""
        return {*self._machines, *self._starting, *ready.chosen.nameless}

    async def _sweep_one(self, ready: _Ready, host_id: str, name: str | None) -> None:
        traces = Traces(ready.layout, host_id, ready.tree.cgroup(host_id))
        if name is not None:
            traces.is_named(name)
        await traces.remove(search=True)

    def _started(self) -> _Ready:
        if self._ready is None:
            raise EngineUnavailableError("the gVisor engine is not started")
        return self._ready


class _Ready:
    """What a started engine holds; `close` gives it back."""

    runsc: Runsc
    findings: probes.Findings
    chosen: Starter
    shells: Shells | None = None

    def __init__(self, layout: Layout, lock: int) -> None:
        """`lock`: a descriptor that holds the installation's lock; closed by `close`."""
        self.layout = layout
        self._lock = lock
        self.tree = CgroupTree(layout.cgroup_prefix)
        self.launcher = Launcher(width=4)

    def starter(self, runsc: Runsc, mode: Mode, *, width: int) -> Starter:
        commands = Commands(self.launcher, runsc, self.layout.root)
        return Starter(self.layout, self.tree, commands, mode, width=width)

    def settle(self, runsc: Runsc, findings: probes.Findings, *, width: int, shells: int) -> None:
        self.runsc = runsc
        self.findings = findings
        self.chosen = self.starter(runsc, findings.mode, width=width)
        if shells > 0 and findings.usable and findings.mode.cgroups:  # without cgroups they could not be frozen
            self.chosen.shells = self.shells = Shells(self.chosen, count=shells)

    def close(self) -> None:
        self.launcher.close()
        reap_strays()
        self.tree.remove()
        unmount_below(self.layout.root)
        attachments.give_back(self.layout)
        self.layout.discard_root()
        os.close(self._lock)


def _shells_from_environment() -> int:
    value = os.environ.get("CELLBOX_SHELLS", "")
    if not value:
        return _SHELLS
    if not value.isascii() or not value.isdigit():
        raise ConfigurationError(f"CELLBOX_SHELLS must be a number from 0 on: {value!r}")
    return int(value)


async def _lock(layout: Layout) -> int:
    """Take the installation's lock.

    A daemon that was killed while it started a program leaves the lock to that program until it has executed: some
    milliseconds, which is why a held lock is tried again.
    """
    lock = os.open(layout.state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + _LOCK_DEADLINE_S
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise EngineUnavailableError(f"another process drives the engine in {layout.state}") from error
                await asyncio.sleep(0.02)
            else:
                return lock
    except BaseException:
        os.close(lock)
        raise


def _cpu_features() -> str:
    """What a guest may have found and used: an image needs all of it wherever it is restored."""
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return " ".join(sorted(found[1].split())) if found else ""
