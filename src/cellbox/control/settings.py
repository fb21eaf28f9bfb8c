"""Everything an operator can set about a daemon. `cellbox.server.settings` reads it from file, environment and CLI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cellbox.protocol import sandboxes


class Secret(str):
    """Text that must not end up in a log or a traceback by way of `repr`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<secret>" if self else "''"


def default_data_dir() -> Path:
    """`/var/lib/cellbox` for root, else `cellbox` in the user's XDG data directory."""
    if os.geteuid() == 0:
        return Path("/var/lib/cellbox")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "cellbox"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one daemon. Each is also an environment variable: `data_dir` is `CELLBOX_DATA_DIR`."""

    listen: str = "127.0.0.1:8080"
    """`HOST:PORT`, or `unix:PATH` for a socket that only its owner can use. Port 0 takes any free one."""
    data_dir: Path = msgspec.field(default_factory=default_data_dir)
    """Where the database, templates and sandboxes lie. One daemon at a time."""
    templates_dir: Path | None = None
    """Where templates and downloads lie, if not in `data_dir`. Several daemons of one host may share it."""
    engine: str = "gvisor"
    """Name of the isolation engine."""
    bootstrap_key: Secret = Secret()
    """An admin key that exists from the first start on: `pds_` and at least 32 hex digits. For unattended set-ups."""

    default_ttl_seconds: Annotated[float, Meta(gt=0)] = float(sandboxes.DEFAULT_TTL_SECONDS)
    """How long a sandbox lives when its creator doesn't say."""
    max_ttl_seconds: Annotated[float, Meta(gt=0)] = float(sandboxes.MAX_TTL_SECONDS)
    """The longest TTL that may be asked for."""
    max_sandboxes: Annotated[int, Meta(ge=1)] = 100
    """How many sandboxes may exist at once, of all owners together."""
    max_sandboxes_per_owner: Annotated[int, Meta(ge=1)] = 50
    """How many sandboxes one owner may have at once."""
    max_workspaces_per_owner: Annotated[int, Meta(ge=1)] = 100
    """How many workspaces one owner may have."""
    workspace_mb: Annotated[int, Meta(ge=16)] = 1024
    """The size of a workspace when its creator doesn't say. It takes as much of the host's disk as is used of it."""
    max_workspace_mb: Annotated[int, Meta(ge=16)] = 65_536
    """The largest size of a workspace that may be asked for."""
    hibernate_idle_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """After how long without a call, and with nothing running in it, a persistent sandbox is hibernated."""
    hibernated_ttl_seconds: Annotated[float, Meta(gt=0)] = float(sandboxes.MAX_TTL_SECONDS)
    """How long a hibernated sandbox is kept that nobody wakes, unless it is persistent."""
    max_snapshots_per_owner: Annotated[int, Meta(ge=0)] = 100
    """How many snapshots one owner may have at once."""
    max_snapshot_mb_per_owner: Annotated[int, Meta(ge=0)] = 50 * 1024
    """How many MiB of disk the snapshots of one owner may take together."""
    snapshot_ttl_seconds: Annotated[float, Meta(gt=0)] = float(sandboxes.MAX_TTL_SECONDS)
    """How long a snapshot is kept when its maker doesn't say."""

    pool: tuple[str, ...] = ()
    """How many sandboxes are kept ready before anyone asks: `TEMPLATE=N`, or `TEMPLATE=MIN-MAX` to have more of them
    while they are in demand. `*` stands for any template."""

    journal_mb: Annotated[int, Meta(ge=0, le=4096)] = 32
    """How much of what was run in a sandbox is kept, for each sandbox. 0 keeps nothing."""
    journal_keep_days: Annotated[float, Meta(ge=0)] = 7.0
    """How long a journal is kept after its sandbox ended."""

    allowed_hosts: tuple[str, ...] = ()
    """Host names under which the server may be addressed, exactly as in the `Host` header, with or without port.
    Empty: the names of this machine's loopback when listening there (against DNS rebinding), any name otherwise."""
    allowed_origins: tuple[str, ...] = ()
    """Web origins whose pages may call the server, as `https://example.org`. Any other page is refused."""
    keepalive_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """How often a waiting client is told that the server is still there. Clients give up after 30 s of silence."""
    max_json_bytes: Annotated[int, Meta(ge=1024)] = 32 * 1024 * 1024
    """The largest JSON body that is accepted."""
    max_file_bytes: Annotated[int, Meta(ge=1)] | None = None
    """The largest file that may be uploaded at once; the sandbox's own disk limits it anyway."""
    max_template_bytes: Annotated[int, Meta(ge=1)] = 16 * 1024**3
    """The largest recipe or root filesystem that may be uploaded."""
    max_connections: Annotated[int, Meta(ge=1)] = 4096
    """Requests beyond this many open connections are answered with 503."""
    shutdown_grace_seconds: Annotated[float, Meta(ge=0)] = 10.0
    """How long requests in progress may go on after SIGTERM. A second signal ends them at once."""
    idle_exit_seconds: Annotated[float, Meta(gt=0)] | None = None
    """Exit when there was no sandbox and no request for so long. For private daemons that a client started."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    """`auto`: for people when standard error is a terminal, else one JSON object a line."""
