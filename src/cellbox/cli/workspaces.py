"""`cellbox workspace`: directories that outlive sandboxes."""

from __future__ import annotations

from cyclopts import App

from cellbox import Client
from cellbox.cli.about import Dashable, JsonFlag, RawFlag
from cellbox.cli.copy import transfer
from cellbox.cli.listing import show
from cellbox.cli.output import age, print_json, print_table, say, size

app = App(name="workspace", help="List, create, delete and copy workspaces.")


@app.command(name="ls")
def list_all(place: str = "", /, *, as_json: JsonFlag = False) -> None:
    """List your workspaces, or a directory of one.

    Args:
        place: NAME or NAME:/PATH; without it, all workspaces are listed.
    """
    with Client() as client:
        if place:
            name, _, path = place.partition(":")
            show(client.workspaces.get(name), path or "/", as_json=as_json)
            return
        found = [workspace.info for workspace in client.workspaces.list()]
    if as_json:
        print_json(found)
        return
    print_table(
        ("NAME", "HOLDS UP TO", "TAKES", "SANDBOXES", "AGE"),
        [
            (
                info.name,
                f"{info.size_mb} MiB" if info.is_enforced else f"{info.size_mb} MiB (not enforced)",
                size(info.size_bytes),
                len(info.sandboxes),
                age(info.created_at) if info.created_at else "-",
            )
            for info in found
        ],
    )


@app.command
def create(name: str, /, *, size: int | None = None) -> None:
    """Create an empty workspace.

    Args:
        name: 1 to 64 letters, digits, dots, dashes and underscores.
        size: How much it may hold, in MiB. Default: the daemon's setting.
    """
    with Client() as client:
        print(client.workspaces.create(name, size_mb=size).name)


@app.command(name="rm")
def delete(*names: str) -> None:
    """Delete workspaces and all that is in them. Refused while a sandbox has one mounted.

    Args:
        names: Which.
    """
    with Client() as client:
        for name in names:
            client.workspaces.delete(name)
            say(f"Workspace {name} is gone.")


@app.command(name="cp")
def copy(source: Dashable, target: Dashable, /, *, raw: RawFlag = False) -> int:
    """Copy a file or directory into or out of a workspace: `cellbox workspace cp data.csv NAME:/`.

    Works as `cellbox cp` does, whether or not a sandbox has the workspace mounted.

    Args:
        source: LOCAL, NAME:/PATH or `-`.
        target: LOCAL, NAME:/PATH or `-`.
    """
    with Client() as client:
        return transfer(source, target, client.workspaces.get, "NAME", raw=raw)
