"""Sandboxes: create, look at, keep alive."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from cellbox.protocol.values import RequestBody, Value

DEFAULT_TEMPLATE = "code-interpreter"
DEFAULT_TTL_SECONDS = 3600
MAX_TTL_SECONDS = 30 * 24 * 3600
"""Thirty days. A sandbox that must live longer is `persistent`."""

Metadata = dict[str, str]
OnTimeout = Literal["kill", "hibernate"]
TtlSeconds = Annotated[float, Meta(gt=0, le=MAX_TTL_SECONDS)]


class SandboxStatus(StrEnum):
    """Where a sandbox is in its life."""

    RUNNING = "running"
    PAUSED = "paused"
    """It uses no CPU and answers nothing until it is resumed."""
    HIBERNATED = "hibernated"
    """It is on the host's disk and uses no memory; the next command, cell or file operation wakes it."""
    STOPPING = "stopping"
    FAILED = "failed"


class VolumeMount(RequestBody):
    """A workspace that exists, to be mounted where `path` says."""

    name: str
    read_only: bool = False
    path: str = ""
    """Absolute; empty for `/volumes/NAME`."""


class CreateSandbox(RequestBody):
    """Body of `create_sandbox`. Everything has a default; sizes default to the template's own."""

    template: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = DEFAULT_TEMPLATE
    ttl_seconds: TtlSeconds | None = None
    """Seconds until the sandbox is reaped, counted from its creation. Default 3600."""
    persistent: bool = False
    """Never reaped; `ttl_seconds` has no effect while it is set. Hibernated when it has been idle for some minutes."""
    on_timeout: OnTimeout = "kill"
    """What happens when `ttl_seconds` are over: `hibernate` keeps it on disk, and waking it gives it as many again."""
    metadata: Metadata = {}
    """At most 64 entries of 4 KiB. Keys that begin with `secret.` are stored but never returned."""
    env: dict[str, str] = {}
    """Environment of every command and kernel in the sandbox."""
    cpu: Annotated[float, Meta(gt=0, le=512)] | None = None
    """In cores."""
    memory_mb: Annotated[int, Meta(ge=64, le=1_048_576)] | None = None
    disk_mb: Annotated[int, Meta(ge=16, le=1_048_576)] | None = None
    """The writable disk. It is kept in memory, on top of `memory_mb`."""
    disk_gb: Annotated[float, Meta(gt=0, le=1024)] | None = None
    """The same in GiB, as other clients of this wire send it."""
    network: Literal["none"] = "none"
    """Loopback only."""
    from_snapshot: str | None = None
    """Id of a snapshot to go on from. Its template and sizes win over the ones given here; `env` can't be given."""
    workspace: str = ""
    """Name of the workspace to mount at `/workspace`; it is created when there is none of this name."""
    volumes: list[VolumeMount] = []
    """More workspaces to mount, 14 at most. They must exist."""


class SandboxInfo(Value):
    """The row of one sandbox."""

    id: str
    template: str
    status: SandboxStatus
    cpu: float
    memory_mb: int
    disk_mb: int
    created_at: datetime
    metadata: Metadata = {}
    persistent: bool = False
    ttl_seconds: float = 0
    expires_at: datetime | None = None
    """None for a persistent sandbox and for a paused one, whose clock is stopped. Of a hibernated one: when its image
    is deleted."""
    boot_ms: float = 0
    """From the request's arrival until the guest was configured, measured by the daemon."""
    boot_mode: str = ""
    """`pool`: made ready before anyone asked. `snapshot`: restored from the template's baked snapshot or one of yours.
    `cold`: booted, since there was none to use. `fork`: goes on from another sandbox."""
    engine: str = ""
    template_digest: str = ""
    tools: list[str] = []
    """What the template's maker thinks worth naming of what is installed."""
    enforced: dict[str, bool] = {}
    """Which limits this host really enforces for this sandbox: memory, cpu, tasks, disk."""
    limitations: list[str] = []
    """What could not be enforced in this sandbox, in words."""
    network: str = "none"
    from_snapshot: str | None = None
    """The snapshot it was made from."""
    forked_from: str | None = None
    """The sandbox it was forked from."""
    on_timeout: OnTimeout = "kill"
    workspace: str = ""
    """Name of the workspace at `/workspace`; empty when what is there ends with the sandbox."""
    volumes: list[VolumeMount] = []
    failure: str = ""
    """Why `status` is `failed`."""


class UpdateLifecycle(RequestBody):
    """Body of `update_lifecycle`: what is left out stays as it is."""

    ttl_seconds: TtlSeconds | UnsetType = UNSET
    """Counted from now."""
    persistent: bool | UnsetType = UNSET
    on_timeout: OnTimeout | UnsetType = UNSET


class Lifecycle(Value):
    """How long a sandbox has to live."""

    ttl_seconds: float
    persistent: bool
    idle_seconds: float
    """Since the last command, cell or file operation."""
    expires_at: datetime | None = None
    on_timeout: OnTimeout = "kill"


class UpdateMetadata(RequestBody):
    """Body of `update_metadata`: replaces all of it."""

    metadata: Metadata


class SandboxUsage(Value):
    """What a sandbox uses now, measured on the host with everything of the engine included."""

    uptime_seconds: float
    host_cpu_seconds: float
    host_cpu_percent: float
    """Average since creation, 100 = one core."""
    host_rss_bytes: int
    host_peak_bytes: int
    processes: int
    """Host processes of this sandbox's machine."""
    pid: int = 0
    """A stand-in that other clients of this wire look for: always positive while the sandbox runs."""
