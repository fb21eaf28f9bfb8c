"""`cellbox pool`: what is ready before anyone asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclopts import App

from cellbox.cli.about import JsonFlag
from cellbox.cli.exits import UsageError
from cellbox.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from cellbox.protocol.pool import PoolStatus

app = App(name="pool", help="Show and set what is kept ready before anyone asks.")


@app.default
def show(*, as_json: JsonFlag = False) -> None:
    """Show what the pool holds, what it costs and how it has served. Needs an admin key."""
    from cellbox import Client

    with Client() as client:
        _print(client.pool.status(), as_json)


@app.command(name="set")
def resize(*sizes: str, as_json: JsonFlag = False) -> None:
    """Set how many sandboxes are kept ready, until the daemon restarts. Needs an admin key.

    Args:
        sizes: TEMPLATE=N, or TEMPLATE=MIN-MAX to have more while they are in demand; `*` stands for any template.
            What is not named is not kept any more.
    """
    from cellbox import Client

    wanted = dict(_size(entry) for entry in sizes)
    with Client() as client:
        _print(client.pool.resize(wanted), as_json)


def _size(entry: str) -> tuple[str, tuple[int, int]]:
    name, separator, size = entry.partition("=")
    least, _, most = size.partition("-")
    if not separator or not least.isdecimal() or (most and not most.isdecimal()):
        raise UsageError(f"{entry!r} is no pool size: write TEMPLATE=N or TEMPLATE=MIN-MAX.")
    return name, (int(least), int(most or least))


def _print(status: PoolStatus, as_json: bool) -> None:
    if as_json:
        print_json(status)
        return
    print_table(
        ("TEMPLATE", "DIGEST", "CPU", "MEMORY", "DISK", "READY", "WANTED"),
        [
            (
                entry.template,
                entry.template_digest[:12],
                f"{entry.cpu:g}",
                f"{entry.memory_mb} MB",
                f"{entry.disk_mb} MB",
                str(entry.ready),
                str(entry.wanted),
            )
            for entry in status.entries
        ],
    )
    waits = f"; waits: {status.waits_for}" if status.waits_for else ""
    say(
        f"{status.ready} ready in {status.memory_bytes >> 20} MB; {status.hits} served, {status.misses} missed, "
        f"{status.unfit} unfit, {status.given_back} given back{waits}"
    )
    for name in status.unknown:
        say(f"{name}: no such template is built")
