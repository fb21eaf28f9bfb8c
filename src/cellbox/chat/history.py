"""Conversations, kept in an SQLite file."""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from cellbox.chat.messages import Message
from cellbox.errors import ConfigurationError
from cellbox.protocol.values import Value

_VERSION = 1
_TITLE_CHARACTERS = 80
_SCHEMA = """
CREATE TABLE conversations (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL,
    model TEXT NOT NULL,
    template TEXT NOT NULL,
    workspace TEXT NOT NULL,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL
) STRICT;
CREATE TABLE messages (
    conversation INTEGER NOT NULL REFERENCES conversations ON DELETE CASCADE,
    position INTEGER NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (conversation, position)
) STRICT, WITHOUT ROWID;
PRAGMA user_version = 1;
"""
_COLUMNS = "number, key, title, model, template, workspace, created_at, used_at"


class Conversation(Value):
    """What is known of a conversation beside what was said."""

    number: int
    """For people."""
    key: str
    """For the registry of sandboxes: random, so that it is nobody else's."""
    title: str
    """The beginning of the user's first contribution; empty before that."""
    model: str
    template: str
    workspace: str
    created_at: float
    """Seconds since the epoch."""
    used_at: float


class History:
    """The conversations of one user. Several programs may share the file; a conversation is open in one at a time.

    Args:
        directory: Where the file is; it is made for its owner only.

    Raises:
        ConfigurationError: The file is damaged, of a newer version, or can't be opened.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = directory / "history.db"
        self._lock_file = os.open(directory / "history.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._db = sqlite3.connect(self._path, isolation_level=None, timeout=10)
        try:
            self._path.chmod(0o600)
            self._rows("PRAGMA journal_mode = WAL")
            self._rows("PRAGMA foreign_keys = ON")
            self._migrate()
        except sqlite3.Error as error:
            self.close()
            raise ConfigurationError(f"The conversations in {self._path} can't be opened: {error}") from error
        except BaseException:
            self.close()
            raise

    def begin(self, *, model: str, template: str, workspace: str) -> Conversation:
        """A new conversation, open in this program."""
        now = time.time()
        key = f"chat-{secrets.token_hex(8)}"
        [[number]] = self._rows(
            "INSERT INTO conversations (key, title, model, template, workspace, created_at, used_at) "
            "VALUES (?, '', ?, ?, ?, ?, ?) RETURNING number",
            (key, model, template, workspace, now, now),
        )
        assert self.open(number)
        return self._get(number)

    def open(self, number: int) -> Conversation | None:
        """The conversation of this number, open in this program; None where another has it open.

        Raises:
            KeyError: There is none.
        """
        conversation = self._get(number)
        try:
            # A range of one byte: the kernel lets go of it when this program ends, however it ends.
            fcntl.lockf(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except OSError:
            return None
        return conversation

    def close_conversation(self, number: int) -> None:
        """Let other programs open it."""
        fcntl.lockf(self._lock_file, fcntl.LOCK_UN, 1, number)

    def list(self) -> list[Conversation]:
        """All in which something was said, the last used first."""
        rows = self._rows(f"SELECT {_COLUMNS} FROM conversations WHERE title != '' ORDER BY used_at DESC, number DESC")  # noqa: S608 - constants only
        return [_conversation(row) for row in rows]

    def messages(self, conversation: Conversation) -> list[Message]:
        """What was said, in order.

        Raises:
            ConfigurationError: The file is damaged.
        """
        rows = self._rows(
            "SELECT message FROM messages WHERE conversation = ? ORDER BY position", (conversation.number,)
        )
        try:
            return [msgspec.json.decode(text, type=Message) for (text,) in rows]
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"The conversations in {self._path} are damaged: {error}") from error

    def add(self, conversation: Conversation, message: Message) -> None:
        """Keep what was said. It is on the disk when this returns."""
        number = conversation.number
        title = " ".join(message.content.split())[:_TITLE_CHARACTERS] if message.role == "user" else ""
        with self._transaction():
            self._rows(
                "INSERT INTO messages SELECT ?, coalesce(max(position), 0) + 1, ? FROM messages WHERE conversation = ?",
                (number, msgspec.json.encode(message).decode(), number),
            )
            self._rows(
                "UPDATE conversations SET used_at = ?, title = iif(title = '', ?, title) WHERE number = ?",
                (time.time(), title, number),
            )

    def note_model(self, conversation: Conversation, model: str) -> None:
        """From here on it is another model that answers."""
        self._rows("UPDATE conversations SET model = ? WHERE number = ?", (model, conversation.number))

    def clear(self, conversation: Conversation) -> None:
        """Forget what was said; the conversation itself stays."""
        self._rows("DELETE FROM messages WHERE conversation = ?", (conversation.number,))

    def forget(self, conversation: Conversation) -> None:
        """Remove the conversation with all that was said."""
        self._rows("DELETE FROM conversations WHERE number = ?", (conversation.number,))
        self.close_conversation(conversation.number)

    def close(self) -> None:
        """Close the file, and every conversation."""
        self._db.close()
        os.close(self._lock_file)

    def _get(self, number: int) -> Conversation:
        rows = self._rows(f"SELECT {_COLUMNS} FROM conversations WHERE number = ?", (number,))  # noqa: S608 - constants only
        if not rows:
            raise KeyError(number)
        return _conversation(rows[0])

    def _migrate(self) -> None:
        with self._transaction():
            [[version]] = self._rows("PRAGMA user_version")
            if version > _VERSION:
                raise ConfigurationError(f"{self._path} was written by a newer version of Cellbox: update this one.")
            for statement in _SCHEMA.split(";") if version == 0 else ():
                self._rows(statement)

    @contextmanager
    def _transaction(self) -> Generator[None, None, None]:
        self._rows("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._rows("ROLLBACK")
            raise
        self._rows("COMMIT")

    def _rows(self, sql: str, values: tuple[object, ...] = ()) -> list[Any]:
        with closing(self._db.cursor()) as cursor:
            return cursor.execute(sql, values).fetchall()


def _conversation(row: tuple[Any, ...]) -> Conversation:
    return Conversation(**dict(zip(_COLUMNS.split(", "), row, strict=True)))
