"""What travels on Sandkasten's wire. Unknown fields of a request are ignored, as the reference does."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from cellbox.protocol.values import Value

MAX_COMMAND_BYTES = 1024 * 1024
MAX_TIMEOUT_MS = 600_000
DEFAULT_TIMEOUT_MS = 120_000
MAX_TTL_SECONDS = 86_400
DEFAULT_TTL_SECONDS = 1800
DEFAULT_READ_BYTES = 10 * 1024 * 1024
MAX_READ_BYTES = 100 * 1024 * 1024
MAX_UPLOAD_BYTES = 100 * 1024 * 1024
"""The reference says 10 MiB and fails beyond five."""
MAX_UPLOAD_FILES = 100
DEFAULT_IMAGE = "python"


class CreateSession(msgspec.Struct, frozen=True, kw_only=True):
    image: str = DEFAULT_IMAGE
    ttl_seconds: int | None = None
    workspace_id: str | None = None


class RunCommand(msgspec.Struct, frozen=True, kw_only=True):
    cmd: str = ""
    timeout_ms: int | None = None
    raw_output: bool = False


class WriteFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str = ""
    text: str | None = None
    content_base64: str | None = None


class SessionInfo(Value):
    id: str
    image: str
    status: Literal["running", "destroying", "crashed"]
    cwd: str
    created_at: datetime
    expires_at: datetime
    workspace_id: str | UnsetType = UNSET
    acquire_source: Literal["pool", "cold"] | UnsetType = UNSET
    """In the answer to a create only."""


class Stats(Value):
    memory_bytes: int
    memory_limit: int
    cpu_usage_usec: int


class CommandResult(Value):
    exit_code: int
    cwd: str
    output: str
    truncated: bool
    duration_ms: int


class OutputChunk(Value, tag_field="event", tag="chunk"):
    chunk: str
    timestamp: int
    """Milliseconds since the epoch."""


class CommandEnd(Value, tag_field="event", tag="done"):
    exit_code: int
    cwd: str
    duration_ms: int


class StreamError(Value, tag_field="event", tag="error"):
    error: str


class FileContent(Value):
    path: str
    content_base64: str
    truncated: bool


class Ok(Value):
    ok: bool = True


class Uploaded(Value):
    ok: bool = True
    paths: list[str]


class Workspace(Value):
    id: str
    created_at: datetime | None = None


class Workspaces(Value):
    workspaces: list[Workspace]


class WorkspaceEntry(Value):
    name: str
    is_dir: bool


class WorkspaceEntries(Value):
    entries: list[WorkspaceEntry]


class ErrorBody(Value):
    error_code: str
    message: str
    details: dict[str, Any] | UnsetType = UNSET
