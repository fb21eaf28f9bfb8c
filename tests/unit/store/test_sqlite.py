"""What only the SQLite store promises: its file, its migrations, and what it does when the disk plays up."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from cellbox.errors import StorageFullError, StoreUnavailableError
from cellbox.store import migrate as migrate_module
from cellbox.store import sqlite as sqlite_module
from cellbox.store.base import KeyRow, SandboxRow
from cellbox.store.migrate import load_migrations, schema_version
from cellbox.store.sqlite import SqliteStore

SANDBOX = SandboxRow(
    id="1", owner="ada", template="base", template_digest="", status="running", request=b"{}", created_at=1.0
)
KEY = KeyRow(prefix="pds_00000001", digest=b"\x00\xff" * 16, owner="ada", label="laptop", is_admin=True, created_at=1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "cellbox.db"


async def test_the_file_is_for_its_owner_only(path: Path) -> None:
    store = SqliteStore(path)
    await store.start()
    await store.insert_key(KEY)
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()} == {
        "cellbox.db": "0o600",
        "cellbox.db-wal": "0o600",
        "cellbox.db-shm": "0o600",
    }
    assert path.parent.stat().st_mode & 0o777 == 0o700
    await store.aclose()


async def test_a_newer_schema_is_refused(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {len(load_migrations()) + 1}")
    db.close()
    store = SqliteStore(path)
    with pytest.raises(StoreUnavailableError, match="newer release"):
        await store.start()
    await store.aclose()


async def test_an_older_schema_is_migrated_and_backed_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(path)
    await store.start()
    await store.insert_key(KEY)
    await store.aclose()

    known = len(load_migrations())
    newer = [*load_migrations(), "CREATE TABLE extra (name TEXT) STRICT;"]
    monkeypatch.setattr(migrate_module, "load_migrations", lambda: newer)
    store = SqliteStore(path)
    await store.start()
    assert store.list_keys() == [KEY]
    await store.aclose()

    backup = path.with_name(f"cellbox.db.v{known}.backup")
    assert backup.stat().st_mode & 0o777 == 0o600
    for file, version in ((path, known + 1), (backup, known)):
        db = sqlite3.connect(file)
        assert schema_version(db) == version
        assert db.execute("SELECT count(*) FROM keys").fetchone() == (1,)
        db.close()


async def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(path)
    await store.start()
    await store.aclose()
    with monkeypatch.context() as patch:
        broken = [*load_migrations(), "CREATE TABLE extra (name TEXT); SELECT nonsense FROM nowhere;"]
        patch.setattr(migrate_module, "load_migrations", lambda: broken)
        store = SqliteStore(path)
        with pytest.raises(StoreUnavailableError, match="no such table"):
            await store.start()
        await store.aclose()
    store = SqliteStore(path)
    await store.start()
    await store.aclose()
    db = sqlite3.connect(path)
    assert schema_version(db) == len(load_migrations())
    assert db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'extra'").fetchone() == (0,)
    db.close()


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 4000])
async def test_a_damaged_file_is_refused_not_overwritten(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    store = SqliteStore(path)
    with pytest.raises(StoreUnavailableError, match="damaged"):
        await store.start()
    assert path.read_bytes() == content
    await store.aclose()


async def test_a_locked_database_is_a_typed_error_and_passes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "BUSY_TIMEOUT_SECONDS", 0.05)
    store = SqliteStore(path)
    await store.start()
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="locked"):
        await store.save_sandbox(SANDBOX)
    assert store.list_keys() == []  # readers don't wait for the writer
    blocker.execute("ROLLBACK")
    await store.save_sandbox(SANDBOX)
    assert await store.list_sandboxes() == [SANDBOX]
    blocker.close()
    await store.aclose()


async def test_a_full_disk_is_a_typed_error_and_passes(path: Path) -> None:
    store = SqliteStore(path)
    await store.start()
    await store._write(lambda db: None)
    assert store._connections is not None
    writer = store._connections[0]
    await store._in_thread(lambda: writer.execute(f"PRAGMA max_page_count = {_page_count(writer)}").fetchone())
    with pytest.raises(StorageFullError):
        await store.save_sandbox(replace(SANDBOX, request=b"x" * 100_000))
    await store._in_thread(lambda: writer.execute("PRAGMA max_page_count = 100000").fetchone())
    await store.save_sandbox(SANDBOX)
    await store.aclose()


async def test_too_many_waiting_writes_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "MAX_PENDING_WRITES", 0)
    store = SqliteStore(path)
    await store.start()
    with pytest.raises(StoreUnavailableError, match="keep up"):
        await store.save_sandbox(SANDBOX)
    await store.aclose()


async def test_what_was_acknowledged_survives_kill_9(path: Path) -> None:
    script = f"""
        import asyncio, os, sys
        from pathlib import Path
        from cellbox.store.base import KeyRow
        from cellbox.store.sqlite import SqliteStore
        async def main():
            store = SqliteStore(Path({str(path)!r}))
            await store.start()
            for number in range(10**6):
                prefix = f"pds_{{number:08x}}"
                row = KeyRow(prefix=prefix, digest=b"d", owner="o", label="", is_admin=False, created_at=number)
                await store.insert_key(row)
                print(row.prefix, flush=True)
        asyncio.run(main())
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip() for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        acknowledged += process.stdout.read().split("\n")[:-1]
    store = SqliteStore(path)
    await store.start()
    assert set(acknowledged) <= {row.prefix for row in store.list_keys()}
    await store.aclose()


def _page_count(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA page_count").fetchone()[0])
