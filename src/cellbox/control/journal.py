"""Journals: what was run in each sandbox and what came of it, on disk, bounded, and kept for a while after its end.

A cell must not wait for its journal: an entry is put aside as it is; a moment later a thread encodes and writes it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import structlog

from cellbox import errors
from cellbox.control import journal_file
from cellbox.control.journal_file import Head
from cellbox.protocol.commands import CommandResult, RunCommand
from cellbox.protocol.contexts import Execution
from cellbox.protocol.journal import CellEntry, CommandEntry, Journal, JournalEntry, ShellEntry
from cellbox.protocol.shells import ShellResult

WRITE_AFTER_SECONDS = 0.25
_MAX_PENDING_CHARACTERS = 64 * 1024 * 1024
_SWEEP_SECONDS = 600.0
_ENDED_IN_TOTAL = 32
"""Journals of ended sandboxes may take as much as so many full ones."""

_log = structlog.stdlib.get_logger(__name__)


class SandboxJournal:
    """The journal of one sandbox that runs. Its `add_…` methods cost microseconds."""

    def __init__(self, path: Path, head: Head, limit_bytes: int, on_closed: Callable[[], object]) -> None:
        self.head = head
        self._path = path
        self._limit_bytes = limit_bytes
        self._on_closed = on_closed
        self._pending: list[JournalEntry] = []
        self._pending_characters = 0
        self._last_number, self._size = journal_file.end_of(path)
        self._is_resumed = self._size > 0
        if not limit_bytes:
            self._size = 1  # full from the start: nothing is kept
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None

    @property
    def last_number(self) -> int:
        """How many entries there were, kept or not."""
        return self._last_number

    def add_cell(
        self, started_at: float, context_id: str, language: str, code: str, execution: Execution | None
    ) -> None:
        """Note a cell."""
        size = len(code)
        if execution is not None:
            size += len(execution.stdout) + len(execution.stderr)
            size += sum(len(data) for bundle in execution.results for data in bundle.values())
        entry = CellEntry(
            number=self._next_number(),
            started_at=datetime.fromtimestamp(started_at, UTC),
            context_id=context_id,
            language=language,
            code=code,
            execution=execution,
        )
        self._put(entry, size)

    def add_command(self, started_at: float, body: RunCommand, result: CommandResult | None) -> None:
        """Note a command."""
        size = len(body.cmd) + len(body.stdin or "")
        size += len(result.stdout) + len(result.stderr) if result is not None else 0
        entry = CommandEntry(
            number=self._next_number(),
            started_at=datetime.fromtimestamp(started_at, UTC),
            cmd=body.cmd,
            cwd=body.cwd or "",
            user=body.user or "",
            env_names=sorted(body.env),
            stdin=body.stdin,
            result=result,
        )
        self._put(entry, size)

    def add_shell_command(self, started_at: float, shell_id: str, cmd: str, result: ShellResult | None) -> None:
        """Note a command of a shell."""
        entry = ShellEntry(
            number=self._next_number(),
            started_at=datetime.fromtimestamp(started_at, UTC),
            shell_id=shell_id,
            cmd=cmd,
            result=result,
        )
        self._put(entry, len(cmd) + (len(result.output) if result is not None else 0))

    async def flush(self) -> None:
        """Write what is pending."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._writing:
            if self._pending:
                entries, self._pending, self._pending_characters = self._pending, [], 0
                await asyncio.to_thread(partial(self._write, entries))

    def close(self) -> None:
        """The sandbox is gone: begin to write the rest. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())

    async def wait_closed(self) -> None:
        """Close it and wait until the rest is written."""
        self.close()
        assert self._closing is not None
        await self._closing

    async def _close(self) -> None:
        await self.flush()
        if self._size > self._limit_bytes > 0:
            await asyncio.to_thread(partial(self._write, []))
        self._on_closed()

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _put(self, entry: JournalEntry, size: int) -> None:
        if self._size > self._limit_bytes or self._pending_characters > _MAX_PENDING_CHARACTERS:
            return  # its number is missing from the journal: that is how a reader knows
        self._pending.append(entry)
        self._pending_characters += size
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WRITE_AFTER_SECONDS, self._begin_to_write)

    def _begin_to_write(self) -> None:
        self._timer = None
        self._flushing = asyncio.get_running_loop().create_task(self.flush())

    def _write(self, entries: list[JournalEntry]) -> None:
        """Encode and append, in a thread. A disk that fails costs the journal, not the sandbox."""
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                if not self._size:
                    self._size += file.write(journal_file.encode_head(self.head))
                elif self._is_resumed:
                    file.write(b"\n")  # after what may be half a line
                self._is_resumed = False
                for entry in entries:
                    line = journal_file.encode_entry(entry, with_outputs=self._size < self._limit_bytes * 3 // 4)
                    if self._size + len(line) > self._limit_bytes:
                        self._size = self._limit_bytes + 1
                        return
                    self._size += file.write(line)
                if not entries:
                    file.write(journal_file.encode_tail(self._last_number))
        except OSError as error:
            self._size = self._limit_bytes + 1
            _log.warning("journal not written", sandbox_id=self.head.sandbox_id, error=str(error))


class Journals:
    """The journals of this daemon: of the sandboxes that run, and of those that ended in the last days."""

    def __init__(self, directory: Path, *, limit_bytes: int, keep_seconds: float) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._keep_seconds = keep_seconds
        self._open: dict[str, SandboxJournal] = {}

    def open(self, sandbox_id: str, owner: str, template: str) -> SandboxJournal:
        """Begin the journal of a sandbox, or go on with it."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        head = Head(sandbox_id=sandbox_id, owner=owner, template=template, created_at=datetime.now(UTC))
        journal = SandboxJournal(
            self._path(sandbox_id), head, self._limit_bytes, on_closed=lambda: self._open.pop(sandbox_id, None)
        )
        self._open[sandbox_id] = journal
        return journal

    async def read(self, owner: str, sandbox_id: str, after: int = 0, limit: int = 100) -> Journal:
        """Return the entries that follow number `after`, at most `limit`.

        Raises `SandboxNotFoundError` when there is no journal, or it is someone else's.
        """
        live = self._open.get(sandbox_id)
        if live is not None:
            await live.flush()
        if journal_file.is_id(sandbox_id):  # it becomes the name of a file
            page = await asyncio.to_thread(partial(journal_file.read, self._path(sandbox_id), after, limit))
            head = page.head if page is not None else live.head if live is not None else None
            if head is not None and head.owner == owner:
                last = live.last_number if live is not None else page.last_number if page is not None else 0
                return Journal(
                    sandbox_id=head.sandbox_id,
                    template=head.template,
                    created_at=head.created_at,
                    entries=page.entries if page is not None else [],
                    missing=last - (page.count if page is not None else 0),
                    next_after=page.next_after if page is not None else None,
                )
        raise errors.SandboxNotFoundError("no journal of such a sandbox: it never was, or ended too long ago")

    async def keep_house(self) -> None:
        """Remove the journals of sandboxes that ended too long ago, now and from time to time."""
        while True:
            await asyncio.to_thread(self.sweep)
            await asyncio.sleep(_SWEEP_SECONDS)

    def sweep(self) -> None:
        """Remove what is too old, and the oldest of what is too much."""
        ended = [
            (path.stat().st_mtime, path) for path in self._directory.glob("*.jsonl") if path.stem not in self._open
        ]
        room = _ENDED_IN_TOTAL * self._limit_bytes
        for modified, path in sorted(ended, reverse=True):
            room -= path.stat().st_size
            if room < 0 or modified < time.time() - self._keep_seconds:
                path.unlink(missing_ok=True)

    async def aclose(self) -> None:
        """Write the rest of all journals."""
        for journal in list(self._open.values()):
            await journal.wait_closed()

    def _path(self, sandbox_id: str) -> Path:
        return self._directory / f"{sandbox_id}.jsonl"
