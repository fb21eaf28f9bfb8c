"""Workspaces: directories that outlive sandboxes. Their files are read and written as those of sandboxes are."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from cellbox.protocol.values import RequestBody, Value

WORKSPACE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class CreateWorkspace(RequestBody):
    name: Annotated[str, Meta(pattern=WORKSPACE_NAME)]
    size_mb: Annotated[int, Meta(ge=16)] | None = None
    """How much it may hold; by default what the daemon's setting `workspace_mb` says."""


class WorkspaceInfo(Value):
    """One workspace."""

    name: str
    size_mb: int
    """How much it may hold."""
    size_bytes: int = 0
    """What it takes of the host's disk now."""
    created_at: datetime | None = None
    sandboxes: list[str] = []
    """Ids of the sandboxes that have it mounted."""
    is_enforced: bool = True
    """Is `size_mb` enforced on this host? Needs root, loop devices and `mkfs.ext4`."""
