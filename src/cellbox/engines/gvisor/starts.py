"""Starting one machine: cgroups, pipes, `runsc create`, then boot or restore; all of it undone if a step fails."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from cellbox.engines.base import Channel, EngineFault, MachineSpec
from cellbox.engines.gvisor import image as images
from cellbox.engines.gvisor.cgroups import Cgroup, CgroupTree, Limits
from cellbox.engines.gvisor.commands import CommandFault, Commands
from cellbox.engines.gvisor.control_socket import ControlFault, SentryCalls
from cellbox.engines.gvisor.launch import Streams
from cellbox.engines.gvisor.layout import Layout
from cellbox.engines.gvisor.spec import host_tasks, memory_limit_bytes, oci_spec, visible_cpus
from cellbox.engines.gvisor.threads import in_thread
from cellbox.engines.gvisor.traces import Traces

_CREATE_DEADLINE_S = 20.0
"""`runsc create` takes 50-70 ms; two hundred times that is a machine on its knees."""
_START_DEADLINE_S = 60.0
"""A restore takes 50-110 ms, and about 0.6 s per GB of saved memory."""

_PIPE_BYTES = 256 * 1024
"""A quarter of a megabyte in flight each way: fewer wake-ups for large outputs than the usual 64 KiB."""

_CONSOLE_LIMIT = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How machines are started on this host, as the probe found it to work."""

    cgroups: bool
    control: Literal["socket", "commands"]


class _SandboxState(msgspec.Struct):
    pid: int
    controlSocketPath: str = ""  # noqa: N815 - the name is runsc's


class _State(msgspec.Struct):
    """The part of runsc's state file that this engine reads."""

    sandbox: _SandboxState
    goferPid: int = 0  # noqa: N815 - the name is runsc's


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What a start leaves to its machine."""

    channel: Channel
    traces: Traces
    socket: Path


class _Pipes:
    """The guest's three streams: our ends, and its own until it has them."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        guest_in, writer = self._pipe(_PIPE_BYTES)
        reader, guest_out = self._pipe(_PIPE_BYTES)
        console, guest_err = self._pipe(None)
        self.streams = Streams(stdin=guest_in, stdout=guest_out, stderr=guest_err)
        self.channel = Channel(reader=reader, writer=writer, console=console)
        for descriptor in (reader, writer, console):
            os.set_blocking(descriptor, False)  # a flag of our end alone: the guest's end is another open file

    def _pipe(self, size: int | None) -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC)
        self._open.update(ends)
        if size is not None:
            with contextlib.suppress(OSError):  # an ordinary user may have used up the share of larger pipes
                fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, size)
        return ends

    def close_guest_ends(self) -> None:
        for descriptor in (self.streams.stdin, self.streams.stdout, self.streams.stderr):
            self._close(descriptor)

    def close(self) -> None:
        for descriptor in list(self._open):
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.discard(descriptor)
            os.close(descriptor)

    def complaint(self) -> str:
        """What runsc or the guest wrote to stderr, the end of it."""
        said = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.channel.console, 1 << 16):
                said = (said + chunk)[-_CONSOLE_LIMIT:]
        return said.decode("utf-8", "replace").strip()


class Starter:
    """Starts machines in one mode, a few at a time."""

    def __init__(self, layout: Layout, tree: CgroupTree, commands: Commands, mode: Mode, *, width: int) -> None:
        self._layout = layout
        self._tree = tree
        self._commands = commands
        self._mode = mode
        self._calls = SentryCalls()
        self._turns = asyncio.Semaphore(width)

    @property
    def mode(self) -> Mode:
        return self._mode

    def traces(self, machine_id: str) -> Traces:
        cgroup = self._tree.cgroup(machine_id) if self._mode.cgroups else None
        return Traces(self._layout, machine_id, cgroup)

    async def start(self, spec: MachineSpec, image: Path | None) -> Started:
        """Boot, or restore `image`. Raises `EngineFault`; nothing is left on the host then, nor when cancelled."""
        async with self._turns:
            self._claim(spec.machine_id)
            traces = self.traces(spec.machine_id)
            pipes = _Pipes()
            try:
                socket = await self._create(spec, traces, pipes)
                pipes.close_guest_ends()
                await self._begin(spec, socket, image)
            except BaseException as error:
                said = await self._undo(traces, pipes)
                if not isinstance(error, (CommandFault, ControlFault, images.ImageFault, OSError)):
                    raise
                raise EngineFault(
                    f"machine {spec.machine_id} did not start: {error}" + (f"; it said: {said}" if said else "")
                ) from error
            return Started(channel=pipes.channel, traces=traces, socket=socket)

    def _claim(self, machine_id: str) -> None:
        """Make the bundle's directory, which only one start can do: undoing a start must not hit another machine."""
        try:
            self._layout.bundle(machine_id).mkdir(mode=0o700)
        except FileExistsError as error:
            raise EngineFault(f"machine {machine_id} exists already, or left traces that no sweep removed") from error
        except OSError as error:
            raise EngineFault(f"machine {machine_id} can't be made: {error}") from error

    async def _undo(self, traces: Traces, pipes: _Pipes) -> str:
        """Remove what a failed start made, also when cancelled meanwhile; returns what was said on stderr."""
        removal = asyncio.ensure_future(traces.remove(search=True))
        try:
            with contextlib.suppress(OSError):
                await asyncio.shield(removal)
            return pipes.complaint()
        finally:
            pipes.close()

    async def _create(self, spec: MachineSpec, traces: Traces, pipes: _Pipes) -> Path:
        limits = limits_of(spec)
        bundle = self._layout.bundle(spec.machine_id)
        config = oci_spec(spec, cgroups_path=traces.cgroup.path if traces.cgroup else None)
        (bundle / "config.json").write_text(json.dumps(config))
        if traces.cgroup is not None:
            await in_thread(traces.cgroup.create, limits)
        await self._commands.create(
            spec.machine_id,
            bundle,
            pipes.streams,
            ignore_cgroups=traces.cgroup is None,
            deadline_s=_CREATE_DEADLINE_S,
        )
        state = self._read_state(spec.machine_id)
        if not traces.hold(state.sandbox.pid, state.goferPid) or traces.sentry is None:
            raise CommandFault("the sentry ended at once")
        if traces.cgroup is not None:
            await in_thread(_settle_limits, traces.cgroup, limits, traces.sentry.pid)
        return Path(state.sandbox.controlSocketPath or self._layout.socket(spec.machine_id))

    def _read_state(self, machine_id: str) -> _State:
        try:
            return msgspec.json.decode(self._layout.state_file(machine_id).read_bytes(), type=_State)
        except (OSError, msgspec.MsgspecError) as error:
            raise CommandFault(f"runsc create left no state that can be read: {error}") from error

    async def _begin(self, spec: MachineSpec, socket: Path, image: Path | None) -> None:
        machine_id = spec.machine_id
        if self._mode.control == "commands":
            if image is None:
                await self._commands.start(machine_id, deadline_s=_START_DEADLINE_S)
            else:
                bundle = self._layout.bundle(machine_id)
                await self._commands.restore(machine_id, bundle, image, deadline_s=_START_DEADLINE_S)
        elif image is None:
            await self._calls.start(socket, machine_id, deadline_s=_START_DEADLINE_S)
        else:
            with images.opened(image, writing=False) as descriptors:
                await self._calls.restore(socket, descriptors, deadline_s=_START_DEADLINE_S)

    async def checkpoint(self, machine_id: str, image: Path, *, leave_running: bool, deadline_s: float) -> None:
        """Save a machine that this starter started."""
        if self._mode.control == "commands":
            await self._commands.checkpoint(machine_id, image, leave_running=leave_running, deadline_s=deadline_s)
            return
        with images.opened(image, writing=True) as descriptors:
            socket = self._layout.socket(machine_id)
            await self._calls.checkpoint(socket, descriptors, leave_running=leave_running, deadline_s=deadline_s)


def limits_of(spec: MachineSpec) -> Limits:
    return Limits(
        memory_bytes=memory_limit_bytes(spec),
        visible_memory_bytes=spec.memory_mb << 20,
        cpu=spec.cpu,
        visible_cpus=visible_cpus(spec),
        tasks=host_tasks(spec),
    )


def _settle_limits(cgroup: Cgroup, limits: Limits, sentry: int) -> None:
    """A limit on a cgroup the sentry is not in is none (this went unnoticed elsewhere): such a start fails."""
    if wrong := cgroup.missing(sentry):
        raise CommandFault(f"the sentry is not under the limits for {', '.join(wrong)}")
    cgroup.widen(limits)
