"""Keys, the caller's identity, and what the daemon is."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from cellbox.protocol.values import RequestBody, Value


class Me(Value):
    user_id: str
    """The owner: sandboxes belong to it, and all its keys see the same ones."""
    email: str = ""
    auth_method: str = "token"
    is_admin: bool = False
    current_org: str | None = None
    orgs: list[str] = []


class CreateToken(RequestBody):
    label: Annotated[str, Meta(min_length=1, max_length=128)]
    owner: str | None = None
    """Another owner than the caller's own; for admins."""
    is_admin: bool = False
    expires_in_days: Annotated[float, Meta(gt=0, le=3650)] | None = None


class TokenInfo(Value):
    prefix: str
    """The part of the key that may be shown: `pds_` and eight hex digits."""
    label: str
    owner: str
    created_at: datetime
    is_admin: bool = False
    expires_at: datetime | None = None
    last_used_at: datetime | None = None


class CreatedToken(TokenInfo):
    token: str
    """The key itself. Shown this once, stored only as a hash."""


class TokenList(Value):
    items: list[TokenInfo]


class Health(Value):
    status: str


class Version(Value):
    name: str
    version: str
    api: str = "v1"


class ProblemInfo(Value):
    summary: str
    fix: str
    fatal: bool


class Capabilities(Value):
    """What this host can really do, found by trying."""

    engine: str
    engine_version: str
    usable: bool
    enforced: dict[str, bool]
    facts: dict[str, str] = {}
    problems: list[ProblemInfo] = []
    advisories: list[str] = []
    server_version: str = ""


class ErrorBody(Value):
    """The body of every answer that is no success. `error` is always a flat string."""

    error: str
    code: str = ""
    detail: str | None = None
    details: dict[str, object] = {}
    request_id: str = ""


class LogLine(Value, tag_field="event", tag="line"):
    line: str
