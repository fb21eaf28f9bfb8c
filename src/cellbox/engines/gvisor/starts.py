"""Starting one machine: cgroups, pipes, `runsc create`, then boot or restore; all of it undone if a step fails.

What `runsc create` leaves is a *shell*: a sentry under its limits, with streams and nothing in it. It may have been
made in advance (`shells.py`); its name on the host is then its own, and a link from the machine's name leads to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, Protocol

import msgspec

from cellbox.engines.base import Channel, EngineFault, MachineSpec
from cellbox.engines.gvisor import attachments
from cellbox.engines.gvisor import image as images
from cellbox.engines.gvisor.cgroups import Cgroup, CgroupTree, Limits
from cellbox.engines.gvisor.commands import CommandFault, Commands
from cellbox.engines.gvisor.control_socket import ControlFault, SentryCalls
from cellbox.engines.gvisor.layout import Layout
from cellbox.engines.gvisor.spec import host_tasks, memory_limit_bytes, oci_spec, visible_cpus
from cellbox.engines.gvisor.streams import Pipes
from cellbox.engines.gvisor.threads import in_thread
from cellbox.engines.gvisor.traces import Traces

_CREATE_DEADLINE_S = 20.0
"""`runsc create` takes 50-70 ms; two hundred times that is a machine on its knees."""
_START_DEADLINE_S = 60.0
"""A restore takes 50-110 ms, and about 0.6 s per GB of saved memory."""

_SHELL_PREFIX = "5e11-"
"""Of the host's names for shells. Nothing depends on it: it lets an operator tell them apart in `ps`."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """A machine that was created and neither booted nor restored."""

    spec: MachineSpec
    traces: Traces
    pipes: Pipes
    socket: Path
    rootfs: tuple[int, int]
    """Device and inode of the root filesystem that the gofer has open."""

    @property
    def host_id(self) -> str:
        return self.traces.machine_id

    def is_fit(self) -> bool:
        """Can it still be made the machine of its spec? Not when a process of it has ended or the template went."""
        try:
            same = identity(self.spec.rootfs) == self.rootfs
        except OSError:
            return False
        sentry, gofer = self.traces.sentry, self.traces.gofer
        return same and sentry is not None and gofer is not None and sentry.is_running() and gofer.is_running()


class ShellSource(Protocol):
    """Where a start may get a shell that is ready."""

    def starting(self, spec: MachineSpec) -> AbstractContextManager[None]:
        """Around a whole start, the wait for its turn included: nothing is made meanwhile."""
        ...

    async def take(self, spec: MachineSpec) -> Shell | None:
        """A shell made for a spec like this one but for its id, thawed and the caller's own from now on."""
        ...


def identity(rootfs: Path) -> tuple[int, int]:
    """What tells a root filesystem from another one that was put in its place."""
    status = rootfs.stat()
    return status.st_dev, status.st_ino


class Starter:
    """Starts machines in one mode, a few at a time."""

    def __init__(self, layout: Layout, tree: CgroupTree, commands: Commands, mode: Mode, *, width: int) -> None:
        self._layout = layout
        self._tree = tree
        self._commands = commands
        self._mode = mode
        self._calls = SentryCalls()
        self._turns = asyncio.Semaphore(width)
        self.shells: ShellSource | None = None
        self.nameless: set[str] = set()
        """Host names of shells that are made, kept or handed out, and that no machine's name leads to yet."""

    @property
    def mode(self) -> Mode:
        return self._mode

    def traces(self, host_id: str) -> Traces:
        cgroup = self._tree.cgroup(host_id) if self._mode.cgroups else None
        return Traces(self._layout, host_id, cgroup)

    async def start(self, spec: MachineSpec, image: Path | None) -> Started:
        """Boot, or restore `image`. Raises `EngineFault`; nothing is left on the host then, nor when cancelled."""
        around = self.shells.starting(spec) if self.shells is not None else contextlib.nullcontext()
        with around:
            async with self._turns:
                return await self._start(spec, image)

    async def _start(self, spec: MachineSpec, image: Path | None) -> Started:
        if self.shells is not None and (shell := await self.shells.take(spec)) is not None:
            # One that died a moment ago must not cost a caller the machine: what fails here is tried once more.
            with contextlib.suppress(EngineFault):
                return await self._start_in(shell, spec, image)
        self._claim(spec.machine_id)
        return await self._start_in(await self._create(spec, spec.machine_id), spec, image)

    async def make_shell(self, spec: MachineSpec) -> Shell:
        """Create a machine for later. Raises `EngineFault`; nothing is left then, nor when cancelled."""
        host_id = f"{_SHELL_PREFIX}{secrets.token_hex(8)}"
        self.nameless.add(host_id)
        try:
            self._claim(host_id)
            return await self._create(spec, host_id)
        except BaseException:
            self.nameless.discard(host_id)
            raise

    async def discard(self, shell: Shell) -> None:
        """Remove a shell that nobody has got."""
        await self._undo(shell.traces, shell.pipes)
        self.nameless.discard(shell.host_id)

    def _claim(self, host_id: str) -> None:
        """Make the bundle's directory, which only one start can do: undoing a start must not hit another machine."""
        try:
            self._layout.bundle(host_id).mkdir(mode=0o700)
        except OSError as error:
            raise _unclaimed(host_id, error) from error

    async def _start_in(self, shell: Shell, spec: MachineSpec, image: Path | None) -> Started:
        traces = shell.traces
        try:
            if shell.host_id != spec.machine_id:
                try:
                    traces.name(spec.machine_id)
                except OSError as error:
                    raise _unclaimed(spec.machine_id, error) from error
                self.nameless.discard(shell.host_id)
            if spec.attachments:
                await in_thread(attachments.attach, self._layout, shell.host_id, spec.attachments)
            await self._begin(shell, image)
            if traces.cgroup is not None:
                await in_thread(traces.cgroup.limit_cpu, limits_of(spec))
        except BaseException as error:
            await self._fail(spec.machine_id, traces, shell.pipes, error)
        finally:
            self.nameless.discard(shell.host_id)
        return Started(channel=shell.pipes.channel, traces=traces, socket=shell.socket)

    async def _create(self, spec: MachineSpec, host_id: str) -> Shell:
        """Run `runsc create` for a host name that is claimed."""
        traces, pipes = self.traces(host_id), Pipes()
        try:
            rootfs = identity(spec.rootfs)
            socket = await self._run_create(spec, traces, pipes)
            pipes.close_guest_ends()
        except BaseException as error:
            await self._fail(spec.machine_id, traces, pipes, error)
        return Shell(spec=spec, traces=traces, pipes=pipes, socket=socket, rootfs=rootfs)

    async def _fail(self, machine_id: str, traces: Traces, pipes: Pipes, error: BaseException) -> NoReturn:
        """Undo a start that failed with `error`, and raise what is to be raised for it."""
        said = await self._undo(traces, pipes)
        if not isinstance(error, (CommandFault, ControlFault, images.ImageFault, OSError)):
            raise error
        raise EngineFault(
            f"machine {machine_id} did not start: {error}" + (f"; it said: {said}" if said else "")
        ) from error

    async def _undo(self, traces: Traces, pipes: Pipes) -> str:
        """Remove what a failed start made, also when cancelled meanwhile; returns what was said on stderr."""
        removal = asyncio.ensure_future(traces.remove(search=True))
        try:
            with contextlib.suppress(OSError):
                await asyncio.shield(removal)
            return pipes.complaint()
        finally:
            pipes.close()

    async def _run_create(self, spec: MachineSpec, traces: Traces, pipes: Pipes) -> Path:
        limits = limits_of(spec)
        host_id = traces.machine_id
        bundle = self._layout.bundle(host_id)
        place = None if spec.writable_root else attachments.make_place(self._layout, host_id)
        config = oci_spec(spec, cgroups_path=traces.cgroup.path if traces.cgroup else None, place=place)
        (bundle / "config.json").write_text(json.dumps(config))
        if traces.cgroup is not None:
            await in_thread(traces.cgroup.create, limits)
        await self._commands.create(
            host_id,
            bundle,
            pipes.streams,
            ignore_cgroups=traces.cgroup is None,
            deadline_s=_CREATE_DEADLINE_S,
        )
        state = self._read_state(host_id)
        if not traces.hold(state.sandbox.pid, state.goferPid) or traces.sentry is None:
            raise CommandFault("the sentry ended at once")
        if traces.cgroup is not None:
            await in_thread(_settle_limits, traces.cgroup, limits, traces.sentry.pid)
        return Path(state.sandbox.controlSocketPath or self._layout.socket(host_id))

    def _read_state(self, host_id: str) -> _State:
        try:
            return msgspec.json.decode(self._layout.state_file(host_id).read_bytes(), type=_State)
        except (OSError, msgspec.MsgspecError) as error:
            raise CommandFault(f"runsc create left no state that can be read: {error}") from error

    async def _begin(self, shell: Shell, image: Path | None) -> None:
        host_id = shell.host_id
        if self._mode.control == "commands":
            if image is None:
                await self._commands.start(host_id, deadline_s=_START_DEADLINE_S)
            else:
                bundle = self._layout.bundle(host_id)
                await self._commands.restore(host_id, bundle, image, deadline_s=_START_DEADLINE_S)
        elif image is None:
            await self._calls.start(shell.socket, host_id, deadline_s=_START_DEADLINE_S)
        else:
            with images.opened(image, writing=False) as descriptors:
                await self._calls.restore(shell.socket, descriptors, deadline_s=_START_DEADLINE_S)

    async def checkpoint(self, host_id: str, image: Path, *, leave_running: bool, deadline_s: float) -> None:
        """Save a machine that this starter started."""
        if self._mode.control == "commands":
            await self._commands.checkpoint(host_id, image, leave_running=leave_running, deadline_s=deadline_s)
            return
        with images.opened(image, writing=True) as descriptors:
            socket = self._layout.socket(host_id)
            await self._calls.checkpoint(socket, descriptors, leave_running=leave_running, deadline_s=deadline_s)


def _unclaimed(machine_id: str, error: OSError) -> EngineFault:
    if isinstance(error, FileExistsError):
        return EngineFault(f"machine {machine_id} exists already, or left traces that no sweep removed")
    return EngineFault(f"machine {machine_id} can't be made: {error}")


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
