"""The store's contract: rows as plain values, and the few things `control` does with them.

A call that returned has happened: it survives a crash of the daemon and of the host. Every store runs the same
conformance tests (`tests/unit/store/test_conformance.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRow:
    """One sandbox as the next daemon must find it. Times are seconds since the epoch."""

    id: str
    owner: str
    template: str
    template_digest: str
    status: str
    request: bytes
    """JSON of the `CreateSandbox` that made it."""
    created_at: float
    expires_at: float | None = None
    """None for a persistent one."""
    persistent: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    machine_id: str = ""
    """What the engine calls its machine; empty when that is the sandbox's own id."""
    rest: bytes = b""
    """JSON of what a hibernated sandbox needs to go on; empty while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRow:
    """One snapshot. Its image lies on disk under its id, with a sealed manifest of its own."""

    id: str
    owner: str
    sandbox_id: str
    name: str
    template: str
    template_digest: str
    size_bytes: int
    sha256: str
    cpu: float
    memory_mb: int
    disk_mb: int
    created_at: float
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """One API key. The secret itself is never here: `digest` is its HMAC under the installation's pepper."""

    prefix: str
    """`pds_` and the first eight hex digits: the name under which a key is looked up and shown."""
    digest: bytes
    owner: str
    label: str
    is_admin: bool
    created_at: float
    expires_at: float | None = None
    last_used_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRow:
    """One workspace. Its content lies on the host under `id`, so that no name ever becomes a path."""

    id: str
    owner: str
    name: str
    size_mb: int
    created_at: float


@runtime_checkable
class Store(Protocol):
    """Where rows are kept. Methods may be called from any task of the loop that called `start`.

    All raise `StoreUnavailableError`, or `StorageFullError` when the disk is full; a call that raised changed nothing.
    """

    async def start(self) -> None:
        """Open it, check it, and bring its schema up to date."""
        ...

    async def aclose(self) -> None:
        """Finish what was asked, then close. Idempotent."""
        ...

    async def installation_id(self) -> str:
        """Sixteen hex digits, made at the first start and never changed: labels everything this installation owns."""
        ...

    async def save_sandbox(self, row: SandboxRow) -> None:
        """Insert or replace the row of this id."""
        ...

    async def delete_sandbox(self, sandbox_id: str) -> None:
        """Remove a row; nothing happens when there is none."""
        ...

    async def list_sandboxes(self) -> list[SandboxRow]:
        """All rows, newest first."""
        ...

    async def insert_workspace(self, row: WorkspaceRow) -> bool:
        """False when the owner has one of this name; the row is not stored then."""
        ...

    async def delete_workspace(self, workspace_id: str) -> None:
        """Remove a row; nothing happens when there is none."""
        ...

    async def list_workspaces(self) -> list[WorkspaceRow]:
        """All rows, by name."""
        ...

    async def save_snapshot(self, row: SnapshotRow) -> None:
        """Insert or replace the row of this id."""
        ...

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Remove a row; nothing happens when there is none."""
        ...

    async def list_snapshots(self) -> list[SnapshotRow]:
        """All rows, newest first."""
        ...

    async def insert_key(self, row: KeyRow) -> bool:
        """False when the prefix is taken; the row is not stored then."""
        ...

    async def delete_key(self, prefix: str) -> bool:
        """False when there was none."""
        ...

    async def touch_keys(self, last_used: Mapping[str, float]) -> None:
        """Note when keys were last used: prefix → time. Unknown prefixes are ignored."""
        ...

    def list_keys(self) -> list[KeyRow]:
        """All keys, newest first. Quick, and never waits for writers."""
        ...

    def version(self) -> int:
        """A number that differs from an earlier one when anything was written in between, by any process.

        Cheap enough for every request: with it, a cache of rows is never stale.
        """
        ...
