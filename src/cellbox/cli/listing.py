"""`cellbox ls`, and what it shares with `cellbox workspace ls`."""

from __future__ import annotations

import stat
from datetime import UTC, datetime

from cellbox import Client, FileInfo, Filesystem
from cellbox.cli.about import JsonFlag
from cellbox.cli.exits import UsageError
from cellbox.cli.finding import open_sandbox
from cellbox.cli.output import print_json, print_table

_KINDS = {"d": stat.S_IFDIR, "l": stat.S_IFLNK, "f": stat.S_IFREG}


def list_directory(place: str, /, *, as_json: JsonFlag = False) -> None:
    """List a directory in a sandbox: `cellbox ls ID:/workspace`.

    Args:
        place: ID:/PATH, or ID for its /workspace.
    """
    name, _, path = place.partition(":")
    with Client() as client:
        show(open_sandbox(client, name).filesystem, path or "/workspace", as_json=as_json)


def show(files: Filesystem, path: str, *, as_json: bool) -> None:
    """Print what is in a directory."""
    if not path.startswith("/"):
        raise UsageError(f"The path must be absolute, not {path!r}.")
    entries = files.list(path)
    if as_json:
        print_json(entries)
        return
    print_table(("MODE", "OWNER", "SIZE", "MODIFIED", "NAME"), [_row(entry) for entry in entries])


def _row(entry: FileInfo) -> tuple[str, str, int, str, str]:
    mode = stat.filemode(_KINDS.get(entry.mode, 0) | entry.permissions)
    moment = datetime.fromtimestamp(entry.mtime, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    name = f"{entry.name} -> {entry.target}" if entry.target else entry.name
    return mode, f"{entry.uid}:{entry.gid}", entry.size, moment, name
