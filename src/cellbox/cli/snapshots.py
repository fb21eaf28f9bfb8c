"""`cellbox snapshot`: saved states of sandboxes."""

from __future__ import annotations

from cyclopts import App

from cellbox import Client
from cellbox.cli.about import JsonFlag
from cellbox.cli.finding import open_sandbox
from cellbox.cli.output import age, print_json, print_table, say, size, time_left

app = App(name="snapshot", help="Take, list and delete snapshots.")


@app.command
def create(sandbox: str, /, *, name: str = "", ttl: float | None = None, as_json: JsonFlag = False) -> None:
    """Save a sandbox's memory, processes and disk while it goes on, and print the snapshot's id.

    `cellbox create --from-snapshot ID` goes on from there.

    Args:
        sandbox: Its id, or the beginning of it.
        name: For people; need not be unique.
        ttl: Seconds until the snapshot is deleted. Default: 30 days.
    """
    with Client() as client:
        snapshot = open_sandbox(client, sandbox).snapshot(name=name, ttl_seconds=ttl)
    print_json(snapshot) if as_json else print(snapshot.id)


@app.command(name="ls", alias="list")
def list_all(*, sandbox: str | None = None, as_json: JsonFlag = False) -> None:
    """List your snapshots, newest first.

    Args:
        sandbox: Only those of the sandbox with this whole id, which may be gone.
    """
    with Client() as client:
        found = client.snapshots.list(sandbox)
    if as_json:
        print_json(found)
        return
    print_table(
        ("ID", "NAME", "SANDBOX", "TEMPLATE", "SIZE", "AGE", "ENDS IN"),
        [
            (one.id, one.name, one.sandbox_id, one.template, size(one.size_bytes), age(one.created_at),
             time_left(one.expires_at))
            for one in found
        ],
    )  # fmt: skip


@app.command(name="rm", alias="delete")
def remove(*snapshots: str) -> None:
    """Delete snapshots; sandboxes made from them live on.

    Args:
        snapshots: Their whole ids.
    """
    with Client() as client:
        for snapshot in snapshots:
            client.snapshots.delete(snapshot)
            say(f"deleted {snapshot}")
