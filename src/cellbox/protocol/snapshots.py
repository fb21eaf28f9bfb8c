"""Snapshots, forks, and the states in which a sandbox rests."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from cellbox.protocol.sandboxes import Metadata, SandboxInfo, SandboxStatus, TtlSeconds
from cellbox.protocol.values import RequestBody, Value

MAX_CHILDREN = 16
"""How many children one fork may make."""


class TakeSnapshot(RequestBody):
    """Body of `take_snapshot`; may be empty."""

    name: Annotated[str, Meta(max_length=200)] = ""
    """For people; need not be unique."""
    ttl_seconds: TtlSeconds | None = None
    """After which the snapshot is deleted. Default: the daemon's `snapshot_ttl_seconds`, 30 days."""


class SnapshotInfo(Value):
    """One saved state: memory, processes and disk."""

    id: str
    sandbox_id: str
    """What it was taken from, which may be gone by now."""
    template: str
    template_digest: str
    created_at: datetime
    expires_at: datetime
    size_bytes: int
    """On the host's disk."""
    memory_mb: int
    disk_mb: int
    cpu: float
    sha256: str
    """Of the manifest, which holds the hash of every part."""
    name: str = ""


class SnapshotList(Value):
    """Newest first."""

    snapshots: list[SnapshotInfo]


class ForkSandbox(RequestBody):
    """Body of `fork_sandbox`; may be empty."""

    metadata: Metadata = {}
    """Of the children, beside what Cellbox adds: `fork_parent_id`."""
    count: Annotated[int, Meta(ge=1, le=MAX_CHILDREN)] = 1
    ttl_seconds: TtlSeconds | None = None
    """Of the children, from now. Default: the parent's."""


class ForkResult(Value):
    """Children that go on from the parent's present state."""

    parent_id: str
    children: list[str]
    """Their ids."""
    sandbox: SandboxInfo
    """The first of them."""
    at: datetime
    snapshot_id: str = ""
    """Always empty: a fork leaves no snapshot behind."""


class ForkTree(RequestBody):
    """Body of `fork_tree`."""

    count: Annotated[int, Meta(ge=1, le=MAX_CHILDREN)] = 2
    metadata: Metadata = {}
    """Of the children, beside `fork_tree_id`, `fork_tree_role`, `fork_parent_id` and `fork_index`. An entry
    `explore_ttl` holds the seconds after which a child ends that nobody promoted."""
    ttl_seconds: TtlSeconds | None = None
    """Of the children, from now. Default: the parent's; never longer than what the parent has left."""


class ForkTreeResult(Value):
    """All children, in the order of their `fork_index`."""

    tree_id: str
    parent_id: str
    children: list[SandboxInfo]
    at: datetime
    snapshot_id: str = ""
    """Always empty: a fork leaves no snapshot behind."""


class PromoteChild(RequestBody):
    """Body of `promote_sandbox`; may be empty."""

    cleanup_siblings: bool = False
    """Kill the other children of the tree."""
    tree_id: str | None = None
    """Default: the tree of the sandbox."""


class Promotion(Value):
    """What became of a tree."""

    winner: str
    tree_id: str
    deleted: list[str] = []
    failures: dict[str, str] = {}
    """Siblings that could not be killed, with the reason."""


class StatusInfo(Value):
    """The state that a sandbox is in now."""

    status: SandboxStatus
