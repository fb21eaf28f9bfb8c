"""Which sandbox belongs to which conversation, kept beyond the process that asked."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Protocol, runtime_checkable

from cellbox.protocol.values import Value


class SessionRecord(Value):
    """One conversation's sandbox and the code context in it."""

    key: str
    compartment: str
    sandbox_id: str
    context_id: str = ""
    used_at: float = 0
    """Seconds since the epoch."""


@runtime_checkable
class SessionStore(Protocol):
    """Where records are kept. Methods may block and are called from several threads, perhaps of several processes."""

    def get(self, key: str, compartment: str) -> SessionRecord | None:
        """The record, if there is one."""
        ...

    def claim(self, record: SessionRecord, *, instead_of: str | None) -> SessionRecord:
        """Put a record in, in one step, if the one there now is of sandbox `instead_of` (None: if there is none).

        Returns the record that stands there afterwards: another's, if that one was quicker.
        """
        ...

    def update(self, record: SessionRecord) -> None:
        """Note a record's `context_id` and `used_at`, if its sandbox is still the one that stands there."""
        ...

    def remove(self, key: str, compartment: str | None = None) -> list[SessionRecord]:
        """Remove a conversation's records, or the one of a compartment, and return them."""
        ...

    def prune(self, used_before: float) -> list[SessionRecord]:
        """Remove and return all records that were not used since."""
        ...


_COLUMNS = "key, compartment, sandbox_id, context_id, used_at"
_SELECT = f"SELECT {_COLUMNS} FROM sessions WHERE key = ? AND compartment = ?"  # noqa: S608 - constants only
_DELETE_ALL = f"DELETE FROM sessions WHERE key = ? RETURNING {_COLUMNS}"  # noqa: S608
_DELETE_ONE = f"DELETE FROM sessions WHERE key = ? AND compartment = ? RETURNING {_COLUMNS}"  # noqa: S608
_PRUNE = f"DELETE FROM sessions WHERE used_at < ? RETURNING {_COLUMNS}"  # noqa: S608


class SqliteSessionStore:
    """Records in an SQLite file, or in memory by default. Several processes may share the file."""

    def __init__(self, path: str | Path = ":memory:") -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
        with closing(self._db.cursor()) as cursor:
            cursor.execute("PRAGMA journal_mode = WAL")
            cursor.execute(
                "CREATE TABLE IF NOT EXISTS sessions (key TEXT, compartment TEXT, sandbox_id TEXT NOT NULL, "
                "context_id TEXT NOT NULL, used_at REAL NOT NULL, PRIMARY KEY (key, compartment)) STRICT, WITHOUT ROWID"
            )

    def get(self, key: str, compartment: str) -> SessionRecord | None:
        rows = self._rows(_SELECT, (key, compartment))
        return rows[0] if rows else None

    def claim(self, record: SessionRecord, *, instead_of: str | None) -> SessionRecord:
        values = (record.key, record.compartment, record.sandbox_id, record.context_id, record.used_at or time.time())
        if instead_of is None:
            self._rows("INSERT OR IGNORE INTO sessions VALUES (?, ?, ?, ?, ?)", values)
        else:
            self._rows(
                "INSERT INTO sessions VALUES (?, ?, ?, ?, ?) ON CONFLICT (key, compartment) DO UPDATE SET "
                "sandbox_id = excluded.sandbox_id, context_id = excluded.context_id, used_at = excluded.used_at "
                "WHERE sandbox_id = ?",
                (*values, instead_of),
            )
        return self.get(record.key, record.compartment) or record

    def update(self, record: SessionRecord) -> None:
        self._rows(
            "UPDATE sessions SET context_id = ?, used_at = ? WHERE key = ? AND compartment = ? AND sandbox_id = ?",
            (record.context_id, record.used_at, record.key, record.compartment, record.sandbox_id),
        )

    def remove(self, key: str, compartment: str | None = None) -> list[SessionRecord]:
        if compartment is None:
            return self._rows(_DELETE_ALL, (key,))
        return self._rows(_DELETE_ONE, (key, compartment))

    def prune(self, used_before: float) -> list[SessionRecord]:
        return self._rows(_PRUNE, (used_before,))

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._db.close()

    def _rows(self, sql: str, values: tuple[object, ...]) -> list[SessionRecord]:
        with self._lock, closing(self._db.cursor()) as cursor:
            found = cursor.execute(sql, values).fetchall()
        return [
            SessionRecord(key=key, compartment=compartment, sandbox_id=sandbox, context_id=context, used_at=used_at)
            for key, compartment, sandbox, context, used_at in found
        ]
