"""The engine contract: what turns a specification into a running guest with a byte stream. Nothing more.

`control` knows engines by this protocol and by name only (`engines/registry.py`); the conformance suite in
`cellbox.testing` says what every engine must hold to. An engine raises `EngineUnavailableError` when the host can't
run it and `EngineFault` when a single machine failed; it never falls back to a weaker boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable


class EngineFault(Exception):  # noqa: N818 - not an error of the API: `control` maps it to one
    """One machine could not be started, saved or asked. The message is for the daemon's log and `doctor`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A host directory shown inside the machine, as a part of its shape. Only the template builder uses it."""

    host_path: Path
    guest_path: str
    read_only: bool


ATTACHMENTS = "/.cellbox/mounts"
"""Where a machine finds what is attached to it: each `Attachment` in a directory of its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A host directory that outlives machines, shown to one of them. No part of its shape: any image fits it."""

    name: str
    """One plain path component; a restored image finds what it had mounted by it."""
    source: Path
    read_only: bool
    """Enforced on the host: the machine has no way to lift it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """Everything an engine needs to start a guest.

    The guest's writable disk lives in guest memory: the host-side memory limit is therefore `memory_mb + disk_mb`
    plus the engine's own overhead, and the guest keeps the two apart.
    """

    machine_id: str
    """Unique on this host for ever; lower-case hex and dashes only. Names every resource of the machine."""
    rootfs: Path
    argv: tuple[str, ...]
    env: Mapping[str, str]
    memory_mb: int
    disk_mb: int
    cpu: float
    """In cores; the guest sees `ceil(cpu)` processors."""
    tasks: int
    """How many processes and threads the guest may have."""
    binds: tuple[Bind, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    """Not together with `writable_root`."""
    writable_root: bool = False
    """Let the guest write to `rootfs` on the host. Only for building templates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """The guest's standard streams as file descriptors of this process; the machine's owner closes them.

    All three are non-blocking pipe ends: the host writes frames to `writer`, reads frames from `reader` and reads
    what the guest's PID 1 complains about from `console`.
    """

    reader: int
    writer: int
    console: int


class ExitCause(StrEnum):
    """Why a machine is gone."""

    KILLED = "killed"  # by `Machine.kill()`
    EXITED = "exited"  # PID 1 ended by itself
    OUT_OF_MEMORY = "out_of_memory"  # the host-side memory limit was hit
    ENGINE_CRASHED = "engine_crashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineExit:
    """How a machine ended."""

    cause: ExitCause
    detail: str
    """One sentence with the facts: exit status, limit, peak use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a machine uses now, measured on the host (everything of the engine included)."""

    memory_bytes: int
    memory_peak_bytes: int
    cpu_seconds: float
    processes: int
    """Host processes that belong to the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something `doctor` should tell the operator, with what to do about it."""

    summary: str
    fix: str
    fatal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What this host can really do with an engine, found by doing it once."""

    engine: str
    version: str
    """As the engine names it; empty when it is missing."""
    usable: bool
    enforced: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """`memory`, `cpu`, `tasks`, `freeze`, … → is it enforced on this host?"""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where the binary is, the platform, cgroup version, …"""
    problems: tuple[Problem, ...] = ()
    advisories: tuple[str, ...] = ()
    """Known advisories that apply to this version."""


@runtime_checkable
class Machine(Protocol):
    """A running guest. All methods are safe to call in any state and from any task; `kill` is idempotent."""

    @property
    def machine_id(self) -> str: ...

    @property
    def channel(self) -> Channel: ...

    async def checkpoint(self, image: Path, *, leave_running: bool) -> None:
        """Save memory, processes and in-memory files into the directory `image` (made by the caller, empty)."""
        ...

    async def pause(self) -> None:
        """Stop the guest from using CPU. Idempotent; raises `EngineFault` where the host can't freeze."""
        ...

    async def resume(self) -> None:
        """Undo `pause`. Idempotent. Returns when the guest can answer again."""
        ...

    async def kill(self) -> None:
        """End the machine now and remove every trace of it on the host: processes, cgroups, files, sockets.

        Returns when that is done. Closing the channel's descriptors is left to their owner.
        """
        ...

    async def usage(self) -> Usage: ...

    async def wait(self) -> MachineExit:
        """Wait until the machine is gone, by itself or through `kill`, and everything of it is removed."""
        ...


@runtime_checkable
class Engine(Protocol):
    """One way to isolate guests on this host."""

    @property
    def name(self) -> str: ...

    async def start(self) -> None:
        """Make ready for machines. Raises `EngineUnavailableError` with the reason when the host is unfit."""
        ...

    async def aclose(self) -> None:
        """Kill what is left and give everything back."""
        ...

    async def probe(self) -> Probe: ...

    def image_key(self) -> str:
        """What a checkpoint depends on beside its rootfs and spec: engine build, flags, CPU features.

        An image may only be restored under the same key.
        """
        ...

    async def boot(self, spec: MachineSpec) -> Machine:
        """Start the guest from its root filesystem."""
        ...

    async def restore(self, spec: MachineSpec, image: Path) -> Machine:
        """Start the guest from a checkpoint made with the same rootfs, argv and env."""
        ...

    async def sweep(self, keep: Collection[str] = ()) -> list[str]:
        """Remove machines that an earlier process of this installation left behind; returns their ids."""
        ...


EngineFactory = Callable[[Path], Engine]
"""Makes an engine that keeps its state under the given directory, which belongs to this installation alone."""
