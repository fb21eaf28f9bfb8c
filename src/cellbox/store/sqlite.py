"""The store in one SQLite file: one thread that writes, one connection that reads.

A transaction is on the disk when the call returns (WAL with `synchronous=FULL`). Writers of other processes, such as
`cellbox key create` beside a running daemon, are waited for and noticed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sqlite3
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from cellbox.errors import StorageFullError, StoreUnavailableError
from cellbox.store.base import KeyRow, SandboxRow, SnapshotRow, WorkspaceRow
from cellbox.store.migrate import migrate

P = ParamSpec("P")
T = TypeVar("T")

BUSY_TIMEOUT_SECONDS = 5.0
_SANDBOX = (
    "id, owner, template, template_digest, status, request, created_at, expires_at, persistent, metadata, machine_id,"
    " rest"
)
MAX_PENDING_WRITES = 1024
"""Beyond this many waiting writes the disk can't keep up, and new ones are refused rather than queued."""


class SqliteStore:
    """A `Store` in the file `path`, which is made with mode 0600 when it is missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cellbox-store")
        self._pending = 0
        self._connections: tuple[sqlite3.Connection, sqlite3.Connection] | None = None

    async def start(self) -> None:
        if self._connections is None:
            writer = await self._in_thread(_open_writer, self._path)
            with _typed_errors(self._path):
                self._connections = writer, _open_reader(self._path)

    async def aclose(self) -> None:
        connections, self._connections = self._connections, None
        if connections is not None:
            writer, reader = connections
            reader.close()
            await self._in_thread(writer.close)
        self._thread.shutdown(wait=False)

    async def installation_id(self) -> str:
        return await self._write(
            lambda db: str(db.execute("SELECT value FROM installation WHERE name = 'id'").fetchone()[0])
        )

    async def save_sandbox(self, row: SandboxRow) -> None:
        values = (
            *(row.id, row.owner, row.template, row.template_digest, row.status, row.request),
            *(row.created_at, row.expires_at, row.persistent),
            *(msgspec.json.encode(dict(row.metadata)).decode(), row.machine_id, row.rest),
        )
        statement = f"REPLACE INTO sandboxes ({_SANDBOX}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
        await self._write(lambda db: db.execute(statement, values))

    async def delete_sandbox(self, sandbox_id: str) -> None:
        await self._write(lambda db: db.execute("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,)))

    async def list_sandboxes(self) -> list[SandboxRow]:
        def read(db: sqlite3.Connection) -> list[SandboxRow]:
            rows = db.execute(f"SELECT {_SANDBOX} FROM sandboxes ORDER BY created_at DESC, id")  # noqa: S608
            return [_sandbox_row(row) for row in rows]

        return await self._write(read)

    async def insert_workspace(self, row: WorkspaceRow) -> bool:
        values = (row.id, row.owner, row.name, row.size_mb, row.created_at)
        statement = "INSERT INTO workspaces VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        return await self._write(lambda db: db.execute(statement, values).rowcount == 1)

    async def delete_workspace(self, workspace_id: str) -> None:
        await self._write(lambda db: db.execute("DELETE FROM workspaces WHERE id = ?", (workspace_id,)))

    async def list_workspaces(self) -> list[WorkspaceRow]:
        def read(db: sqlite3.Connection) -> list[WorkspaceRow]:
            rows = db.execute("SELECT id, owner, name, size_mb, created_at FROM workspaces ORDER BY name, id")
            return [
                WorkspaceRow(id=id_, owner=owner, name=name, size_mb=size_mb, created_at=created_at)
                for id_, owner, name, size_mb, created_at in rows
            ]

        return await self._write(read)

    async def save_snapshot(self, row: SnapshotRow) -> None:
        values = dataclasses.asdict(row)
        marks = ", ".join(f":{name}" for name in values)
        statement = f"REPLACE INTO snapshots ({', '.join(values)}) VALUES ({marks})"  # noqa: S608
        await self._write(lambda db: db.execute(statement, values))

    async def delete_snapshot(self, snapshot_id: str) -> None:
        await self._write(lambda db: db.execute("DELETE FROM snapshots WHERE id = ?", (snapshot_id,)))

    async def list_snapshots(self) -> list[SnapshotRow]:
        names = [field.name for field in dataclasses.fields(SnapshotRow)]
        statement = f"SELECT {', '.join(names)} FROM snapshots ORDER BY created_at DESC, id"  # noqa: S608

        def read(db: sqlite3.Connection) -> list[SnapshotRow]:
            return [SnapshotRow(**dict(zip(names, row, strict=True))) for row in db.execute(statement)]

        return await self._write(read)

    async def insert_key(self, row: KeyRow) -> bool:
        values = (
            *(row.prefix, row.digest, row.owner, row.label, row.is_admin),
            *(row.created_at, row.expires_at, row.last_used_at),
        )
        statement = "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        return await self._write(lambda db: db.execute(statement, values).rowcount == 1)

    async def delete_key(self, prefix: str) -> bool:
        return await self._write(lambda db: db.execute("DELETE FROM keys WHERE prefix = ?", (prefix,)).rowcount == 1)

    async def touch_keys(self, last_used: Mapping[str, float]) -> None:
        values = [(time, prefix) for prefix, time in last_used.items()]
        await self._write(lambda db: db.executemany("UPDATE keys SET last_used_at = ? WHERE prefix = ?", values))

    def list_keys(self) -> list[KeyRow]:
        rows = self._read(
            "SELECT prefix, digest, owner, label, is_admin, created_at, expires_at, last_used_at"
            " FROM keys ORDER BY created_at DESC, prefix"
        )
        return [_key_row(row) for row in rows]

    def version(self) -> int:
        return self._read("PRAGMA data_version")[0][0]

    def _read(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a short query in the caller's thread: a reader never waits for writers in WAL mode."""
        if self._connections is None:
            raise StoreUnavailableError("the store is closed")
        with _typed_errors(self._path):
            return self._connections[1].execute(statement).fetchall()

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` as one transaction in the writing thread."""
        if self._connections is None:
            raise StoreUnavailableError("the store is closed")
        if self._pending >= MAX_PENDING_WRITES:
            raise StoreUnavailableError("the database can't keep up with writes", detail=f"{self._pending} are waiting")
        self._pending += 1
        try:
            # Shielded: once begun, a transaction is seen through, or a cancelled caller could leave it half done.
            return await asyncio.shield(self._in_thread(_transact, self._connections[0], work))
        finally:
            self._pending -= 1

    def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        def typed() -> T:
            with _typed_errors(self._path):
                return call(*args, **kwargs)

        return asyncio.get_running_loop().run_in_executor(self._thread, typed)


def _open_writer(path: Path) -> sqlite3.Connection:
    """Open, check and migrate; runs in the writing thread."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))  # SQLite itself would use the umask
    db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        # With NORMAL, a power cut could lose a create or a revocation that was already acknowledged.
        db.execute("PRAGMA synchronous = FULL")
        damage = [row[0] for row in db.execute("PRAGMA quick_check(3)")]
        if damage != ["ok"]:
            raise sqlite3.DatabaseError("; ".join(damage))
        migrate(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _open_reader(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=0.1, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA query_only = ON")
    return db


def _transact(db: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    db.execute("BEGIN IMMEDIATE")
    try:
        result = work(db)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return result


@contextmanager
def _typed_errors(path: Path) -> Generator[None]:
    """Turn SQLite's and the file system's complaints into ours."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise StorageFullError(f"no space is left for the daemon's database {path.name}") from error
        explanation = _EXPLANATIONS.get(code, "can't be used")
        raise StoreUnavailableError(f"the daemon's database {explanation}", detail=str(error)) from error
    except OSError as error:
        raise StoreUnavailableError("the daemon's database can't be opened", detail=error.strerror) from error


_EXPLANATIONS = {
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_LOCKED: "is locked by another process",
    sqlite3.SQLITE_READONLY: "is read-only",
    sqlite3.SQLITE_CORRUPT: "is damaged; stop the daemon and restore it from a backup",
    sqlite3.SQLITE_NOTADB: "is damaged; stop the daemon and restore it from a backup",
    sqlite3.SQLITE_CANTOPEN: "can't be opened",
    sqlite3.SQLITE_IOERR: "can't be read or written",
}


def _sandbox_row(row: tuple[Any, ...]) -> SandboxRow:
    (id_, owner, template, digest, status, request, created_at, expires_at, *others) = row
    persistent, metadata, machine_id, rest = others
    return SandboxRow(
        id=id_,
        owner=owner,
        template=template,
        template_digest=digest,
        status=status,
        request=request,
        created_at=created_at,
        expires_at=expires_at,
        persistent=bool(persistent),
        metadata=msgspec.json.decode(metadata, type=dict[str, str]),
        machine_id=machine_id,
        rest=rest,
    )


def _key_row(row: tuple[Any, ...]) -> KeyRow:
    (prefix, digest, owner, label, is_admin, created_at, expires_at, last_used_at) = row
    return KeyRow(
        prefix=prefix,
        digest=digest,
        owner=owner,
        label=label,
        is_admin=bool(is_admin),
        created_at=created_at,
        expires_at=expires_at,
        last_used_at=last_used_at,
    )
