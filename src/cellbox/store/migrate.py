"""Schema versions: numbered files in `migrations/`, applied in order, each in one transaction."""

from __future__ import annotations

import sqlite3
from importlib import resources
from pathlib import Path

from cellbox.errors import StoreUnavailableError


def load_migrations() -> list[str]:
    """The SQL of all migrations; the first one makes version 1."""
    folder = resources.files("cellbox.store") / "migrations"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    numbers = [int(file.name.split("_")[0]) for file in files]
    assert numbers == list(range(1, len(files) + 1)), f"migrations are not numbered 1, 2, …: {numbers}"
    return [file.read_text(encoding="utf-8") for file in files]


def migrate(db: sqlite3.Connection, path: Path) -> None:
    """Bring `db` to the newest version.

    A copy of the file as it was is left beside it (`….v1.backup`), for going back to the earlier release. A database
    of a *newer* release is refused: guessing at its rows could lose them.
    """
    migrations = load_migrations()
    version = schema_version(db)
    if version > len(migrations):
        raise StoreUnavailableError(
            f"the daemon's database is of a newer release: schema {version}, this one knows {len(migrations)}",
            detail=f"install that release again, or use the backup {path.name}.v{len(migrations)}.backup",
        )
    if 0 < version < len(migrations):
        backup = path.with_name(f"{path.name}.v{version}.backup")
        backup.unlink(missing_ok=True)
        db.execute("VACUUM INTO ?", (str(backup),))
        backup.chmod(0o600)
    for number, sql in enumerate(migrations[version:], start=version + 1):
        try:
            db.executescript(f"BEGIN IMMEDIATE;\n{sql}\nPRAGMA user_version = {number};\nCOMMIT;")
        except sqlite3.Error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            if schema_version(db) < number:  # else another process, starting at the same moment, was quicker
                raise


def schema_version(db: sqlite3.Connection) -> int:
    """The version that `db` is at; 0 for an empty one."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])
