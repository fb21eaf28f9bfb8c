"""A running gVisor machine: saving, freezing, measuring and ending it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cellbox.engines.base import Channel, EngineFault, ExitCause, MachineExit, MachineSpec, Usage
from cellbox.engines.gvisor import image as images
from cellbox.engines.gvisor.commands import CommandFault
from cellbox.engines.gvisor.control_socket import ControlFault, ControlSocket
from cellbox.engines.gvisor.spec import memory_limit_bytes
from cellbox.engines.gvisor.threads import in_thread
from cellbox.engines.gvisor.traces import Traces

CHECKPOINT_DEADLINE_S = 120.0
"""Saving takes 0.1 s with pandas loaded and about 1 s per GB in memory; a slow disk may be ten times slower."""

_PAUSE_DEADLINE_S = 10.0


_GO_PANIC = 2


@dataclass(slots=True, kw_only=True)
class _Limits:
    """What a machine's cgroups said at its end."""

    oom_kills: int
    refused_tasks: int
    memory: str


class Checkpointer(Protocol):
    """How the engine saves a machine: by control socket or command."""

    async def __call__(self, host_id: str, image: Path, *, leave_running: bool, deadline_s: float) -> None: ...


class GvisorMachine:
    """Owned by the engine that made it; see `cellbox.engines.base.Machine` for the contract."""

    def __init__(
        self,
        spec: MachineSpec,
        channel: Channel,
        traces: Traces,
        *,
        socket: Path,
        checkpointer: Checkpointer,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        removed: Callable[[GvisorMachine], None],
    ) -> None:
        """`spawn` runs a task that outlives the caller; `removed` is told when nothing of the machine is left."""
        assert traces.sentry is not None
        self._spec = spec
        self._channel = channel
        self._traces = traces
        self._socket = socket
        self._checkpointer = checkpointer
        self._removed = removed
        self._turn = asyncio.Lock()
        self._paused = False
        self._cause: ExitCause | None = None
        self._exit: asyncio.Future[MachineExit] = asyncio.get_running_loop().create_future()
        self._ending = False

        def end() -> None:
            if not self._ending:
                self._ending = True
                spawn(self._end())

        self._start_ending = end
        traces.sentry.watch(end)

    @property
    def machine_id(self) -> str:
        return self._spec.machine_id

    @property
    def channel(self) -> Channel:
        return self._channel

    async def checkpoint(self, image: Path, *, leave_running: bool) -> None:
        async with self._turn:
            self._check_alive()
            was_paused = self._paused
            if was_paused:  # a frozen sentry could not answer
                await self._set_paused(paused=False)
            try:
                await self._save(image, leave_running=leave_running)
            finally:
                if was_paused and not self._ending and self._cause is None:
                    await self._set_paused(paused=True)
        if not leave_running:
            await self.wait()
        await asyncio.to_thread(images.reframe, image)

    async def _save(self, image: Path, *, leave_running: bool) -> None:
        if not leave_running:
            self._cause = self._cause or ExitCause.EXITED  # the sentry ends by itself once it has saved
        try:
            await self._checkpointer(
                self._traces.machine_id, image, leave_running=leave_running, deadline_s=CHECKPOINT_DEADLINE_S
            )
        except (ControlFault, CommandFault, images.ImageFault) as error:
            if self._cause is ExitCause.EXITED:
                self._cause = None
            await asyncio.to_thread(images.discard, image)
            raise EngineFault(f"machine {self.machine_id} could not be saved: {error}") from error
        if not leave_running:
            self._start_ending()

    async def pause(self) -> None:
        async with self._turn:
            self._check_alive()
            if not self._paused:
                await self._set_paused(paused=True)

    async def resume(self) -> None:
        async with self._turn:
            self._check_alive()
            if self._paused:
                await self._set_paused(paused=False)

    async def _set_paused(self, *, paused: bool) -> None:
        cgroup = self._traces.cgroup
        try:
            if cgroup is not None:
                await in_thread(cgroup.freeze if paused else cgroup.thaw)
            else:  # without cgroups the sentry stops its guest itself; the sentry goes on
                method = "Pause" if paused else "Resume"
                async with await ControlSocket.connect(self._socket) as control:
                    await control.call(f"containerManager.{method}", None, deadline_s=_PAUSE_DEADLINE_S)
        except (OSError, ControlFault) as error:
            word = "frozen" if paused else "thawed"
            raise EngineFault(f"machine {self.machine_id} could not be {word}: {error}") from error
        self._paused = paused

    def _check_alive(self) -> None:
        if self._ending:
            raise EngineFault(f"machine {self.machine_id} is gone")

    async def kill(self) -> None:
        if not self._ending and self._cause is None:
            self._cause = ExitCause.KILLED
            self._traces.keep_memory()
        self._traces.kill()
        self._start_ending()
        await self.wait()

    async def wait(self) -> MachineExit:
        return await asyncio.shield(self._exit)

    async def usage(self) -> Usage:
        self._check_alive()
        return await in_thread(self._measure)

    def _measure(self) -> Usage:
        cgroup = self._traces.cgroup
        if cgroup is None:
            return self._traces.measure()
        now, peak = cgroup.memory_bytes()
        return Usage(
            memory_bytes=now,
            memory_peak_bytes=peak,
            cpu_seconds=cgroup.cpu_seconds(),
            processes=len(cgroup.pids()),
        )

    async def _end(self) -> None:
        """Runs once: finds out why, removes everything, and tells who waits."""
        facts = _Limits(oom_kills=0, refused_tasks=0, memory="nothing is known of its limits")
        status: int | None = None
        try:
            facts = await in_thread(self._look_at_limits)
            status = await self._traces.remove(search=False)
        except OSError as error:
            facts.memory += f"; removing it from the host failed: {error}"
        finally:
            self._removed(self)
            self._exit.set_result(self._verdict(status, facts))

    def _look_at_limits(self) -> _Limits:
        """Read before the cgroups are removed."""
        cgroup = self._traces.cgroup
        if cgroup is None:
            return _Limits(oom_kills=0, refused_tasks=0, memory="no limits were enforced")
        _, peak = cgroup.memory_bytes()
        return _Limits(
            oom_kills=cgroup.oom_kills(),
            refused_tasks=cgroup.limit_hits()["tasks"],
            memory=f"its memory peaked at {peak >> 20} MB of {memory_limit_bytes(self._spec) >> 20} MB",
        )

    def _verdict(self, status: int | None, facts: _Limits) -> MachineExit:
        memory = facts.memory
        if self._cause is ExitCause.KILLED:
            return MachineExit(cause=ExitCause.KILLED, detail=f"The machine was killed on request; {memory}.")
        if facts.oom_kills:
            return MachineExit(
                cause=ExitCause.OUT_OF_MEMORY,
                detail=f"The kernel killed the machine at the host's memory limit (memory_mb {self._spec.memory_mb} + "
                f"disk_mb {self._spec.disk_mb} + the engine's own need); {memory}.",
            )
        if self._cause is ExitCause.EXITED:
            return MachineExit(cause=ExitCause.EXITED, detail=f"The machine was saved and stopped; {memory}.")
        if status is None:
            return MachineExit(cause=ExitCause.ENGINE_CRASHED, detail=f"The sentry vanished; {memory}.")
        if status < 0:
            return MachineExit(
                cause=ExitCause.ENGINE_CRASHED, detail=f"Signal {-status} ended the sentry from outside; {memory}."
            )
        if status == _GO_PANIC and facts.refused_tasks:
            return MachineExit(
                cause=ExitCause.ENGINE_CRASHED, detail=f"The sentry hit the host's limit of tasks and died; {memory}."
            )
        return MachineExit(cause=ExitCause.EXITED, detail=f"PID 1 ended with status {status}; {memory}.")
