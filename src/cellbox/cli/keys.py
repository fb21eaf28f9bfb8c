"""`cellbox key`: through the daemon where one is configured, else in the data directory itself.

The second way is how the first key is made, before a daemon may listen on a network at all.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cyclopts import App

from cellbox.cli.about import DataDir, Flag, JsonFlag
from cellbox.cli.output import print_json, print_table, say, time_left, yes_no

if TYPE_CHECKING:
    from cellbox.control.keys import Keys
    from cellbox.protocol.account import CreatedToken, TokenInfo

T = TypeVar("T")

app = App(name="key", help="Create, list and revoke API keys.")


@app.command
def create(
    name: str,
    /,
    *,
    admin: Flag = False,
    owner: str | None = None,
    expires_days: float | None = None,
    data_dir: DataDir = None,
    as_json: JsonFlag = False,
) -> None:
    """Create an API key and print it, this once.

    Works through the daemon that CELLBOX_API_URL names; otherwise in the data directory, whether a daemon runs or not.

    Args:
        name: What the key is for.
        admin: May create keys and build templates.
        owner: Whom its sandboxes belong to; all keys of an owner see the same ones. Default: your own, or NAME offline.
        expires_days: Stop working after so many days.
        data_dir: Work in this data directory instead of asking a daemon.
    """
    if _offline(data_dir):
        created: CreatedToken = _in_data_dir(
            data_dir,
            lambda keys: keys.create(name, owner=owner or name, is_admin=admin, expires_in_days=expires_days),
        )
    else:
        from cellbox import Client

        with Client() as client:
            created = client.tokens.create(name, owner=owner, is_admin=admin, expires_in_days=expires_days)
    if as_json:
        print_json(created)
        return
    role = ", an admin" if created.is_admin else ""
    say(f"Key {created.prefix} of owner {created.owner}{role}. It is shown only now:")
    print(created.token)


@app.command(name="list")
def list_all(*, data_dir: DataDir = None, as_json: JsonFlag = False) -> None:
    """List API keys, without the keys themselves.

    Args:
        data_dir: Work in this data directory instead of asking a daemon.
    """
    if _offline(data_dir):

        async def read(keys: Keys) -> list[TokenInfo]:
            return keys.list()

        found = _in_data_dir(data_dir, read)
    else:
        from cellbox import Client

        with Client() as client:
            found = client.tokens.list()
    if as_json:
        print_json(found)
        return
    print_table(
        ("PREFIX", "NAME", "OWNER", "ADMIN", "CREATED", "LAST USED", "EXPIRES IN"),
        [
            (
                key.prefix,
                key.label,
                key.owner,
                yes_no(key.is_admin),
                f"{key.created_at:%Y-%m-%d}",
                f"{key.last_used_at:%Y-%m-%d}" if key.last_used_at else "never",
                time_left(key.expires_at) if key.expires_at else "never",
            )
            for key in found
        ],
    )


@app.command
def revoke(prefix: str, /, *, data_dir: DataDir = None) -> None:
    """Revoke a key at once.

    Args:
        prefix: As `cellbox key list` shows it: `pds_` and eight hex digits.
        data_dir: Work in this data directory instead of asking a daemon.
    """
    if _offline(data_dir):
        _in_data_dir(data_dir, lambda keys: keys.revoke(prefix))
    else:
        from cellbox import Client

        with Client() as client:
            client.tokens.delete(prefix)
    say(f"Key {prefix} no longer works.")


def _offline(data_dir: Path | None) -> bool:
    return data_dir is not None or not (os.environ.get("CELLBOX_API_URL") or os.environ.get("PANDASTACK_API"))


def _in_data_dir(data_dir: Path | None, work: Callable[[Keys], Awaitable[T]]) -> T:
    """Open the installation's keys beside a daemon that may be running: the store is made for that."""
    from cellbox.control.keys import Keys
    from cellbox.server.settings import load_settings
    from cellbox.store.sqlite import SqliteStore

    directory = load_settings(overrides={"data_dir": data_dir}).data_dir

    async def run() -> T:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        store = SqliteStore(directory / "cellbox.sqlite")
        await store.start()
        try:
            keys = Keys(store, directory)
            await keys.start()
            return await work(keys)
        finally:
            await store.aclose()

    return asyncio.run(run())
