"""Templates and their builds."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from cellbox.protocol.values import Value


class TemplateInfo(Value):
    """One template of the catalogue."""

    name: str
    digest: str
    """Content address; empty for a built-in that is not built yet."""
    cpu: float
    memory_mb: int
    disk_mb: int
    size_bytes: int = 0
    is_built: bool = True
    is_global: bool = True
    label: str = ""
    description: str = ""
    category: str = ""
    base: str = ""
    tools: list[str] = []
    aliases: list[str] = []
    created_at: datetime | None = None


BuildStatus = Literal["queued", "building", "baking", "done", "failed"]


class TemplateBuild(Value):
    """A build in progress or past."""

    id: str
    name: str
    status: BuildStatus
    started_at: datetime
    ended_at: datetime | None = None
    error: str = ""
    digest: str = ""


class BuildLine(Value, tag_field="event", tag="line"):
    """One line of a build's log."""

    line: str


class BuildEnded(Value, tag_field="event", tag="done"):
    build: TemplateBuild


BuildEvent = BuildLine | BuildEnded
