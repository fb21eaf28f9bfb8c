"""One journal as a file: a line of JSON for its head and for each entry, and at most one for its tail."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from cellbox.protocol.journal import CellEntry, CommandEntry, JournalEntry, ShellEntry
from cellbox.protocol.values import Value

MAX_TEXT_CHARACTERS = 256 * 1024
"""Kept of each text of an entry."""
MAX_RESULT_CHARACTERS = 4 * 1024 * 1024
"""Kept of all results of a cell together."""
_PAGE_BYTES = 8 * 1024 * 1024
_ID = re.compile(r"[0-9a-f-]{36}")
_TAIL = b'{"kind":"tail"'


class Head(Value):
    """Whose journal it is."""

    sandbox_id: str
    owner: str
    template: str
    created_at: datetime


class _Tail(Value, tag_field="kind", tag="tail"):
    last_number: int


_entries = msgspec.json.Decoder(JournalEntry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a journal."""

    head: Head
    entries: list[JournalEntry]
    count: int
    """How many entries the whole file has."""
    last_number: int
    next_after: int | None


def is_id(sandbox_id: str) -> bool:
    """Whether this can be the id of a sandbox, and so part of a file's name."""
    return _ID.fullmatch(sandbox_id) is not None


def encode_head(head: Head) -> bytes:
    return msgspec.json.encode(head) + b"\n"


def encode_tail(last_number: int) -> bytes:
    return msgspec.json.encode(_Tail(last_number=last_number)) + b"\n"


def encode_entry(entry: JournalEntry, *, with_outputs: bool) -> bytes:
    """One line, with long texts cut and, unless wanted, without outputs. What is left out is counted in it."""
    trimmed: JournalEntry
    if isinstance(entry, CellEntry):
        trimmed = _trim_cell(entry, with_outputs)
    elif isinstance(entry, ShellEntry):
        trimmed = _trim_shell(entry, with_outputs)
    else:
        trimmed = _trim_command(entry, with_outputs)
    try:
        return msgspec.json.encode(trimmed) + b"\n"
    except UnicodeEncodeError:  # a lone surrogate, which JSON can carry only as an escape
        return json.dumps(msgspec.to_builtins(trimmed)).encode() + b"\n"


class _Cutter:
    """Cuts texts and counts what was cut."""

    def __init__(self) -> None:
        self.omitted = 0

    def cut(self, text: str, limit: int = MAX_TEXT_CHARACTERS) -> str:
        if len(text) <= limit:
            return text
        half = limit // 2
        self.omitted += len(text) - 2 * half
        return f"{text[:half]}\n[… {len(text) - 2 * half} characters are not in the journal …]\n{text[-half:]}"


def _trim_cell(entry: CellEntry, with_outputs: bool) -> CellEntry:
    cutter = _Cutter()
    code = cutter.cut(entry.code)
    execution = entry.execution
    if execution is not None:
        room = MAX_RESULT_CHARACTERS if with_outputs else 0
        results: list[dict[str, str]] = []
        for bundle in execution.results:
            size = sum(map(len, bundle.values()))
            room -= size
            results.append(bundle if room >= 0 else {})
            cutter.omitted += size if room < 0 else 0
        execution = msgspec.structs.replace(
            execution,
            stdout=cutter.cut(execution.stdout) if with_outputs else "",
            stderr=cutter.cut(execution.stderr) if with_outputs else "",
            results=results,
        )
        if not with_outputs and entry.execution is not None:
            cutter.omitted += len(entry.execution.stdout) + len(entry.execution.stderr)
    return msgspec.structs.replace(entry, code=code, execution=execution, omitted_bytes=cutter.omitted)


def _trim_shell(entry: ShellEntry, with_outputs: bool) -> ShellEntry:
    cutter = _Cutter()
    result = entry.result
    if result is not None:
        cutter.omitted += 0 if with_outputs else len(result.output)
        result = msgspec.structs.replace(result, output=cutter.cut(result.output) if with_outputs else "")
    cmd = cutter.cut(entry.cmd)
    return msgspec.structs.replace(entry, cmd=cmd, result=result, omitted_bytes=cutter.omitted)


def _trim_command(entry: CommandEntry, with_outputs: bool) -> CommandEntry:
    cutter = _Cutter()
    result = entry.result
    if result is not None:
        if not with_outputs:
            cutter.omitted += len(result.stdout) + len(result.stderr)
        result = msgspec.structs.replace(
            result,
            stdout=cutter.cut(result.stdout) if with_outputs else "",
            stderr=cutter.cut(result.stderr) if with_outputs else "",
        )
    cmd = cutter.cut(entry.cmd)  # before the count is read
    stdin = None if entry.stdin is None else cutter.cut(entry.stdin)
    return msgspec.structs.replace(entry, cmd=cmd, stdin=stdin, result=result, omitted_bytes=cutter.omitted)


def end_of(path: Path) -> tuple[int, int]:
    """The last number in a journal and its size; zeros when there is none."""
    page = read(path, 0, 0)
    return (0, 0) if page is None else (page.last_number, path.stat().st_size)


def read(path: Path, after: int, limit: int) -> Page | None:
    """Read the entries that follow number `after`, at most `limit` and about 8 MiB of them; None without a file.

    A last line that is cut off, as by a crash, counts as not written.
    """
    entries: list[JournalEntry] = []
    count = last_number = size = 0
    next_after: int | None = None
    try:
        with path.open("rb") as file:
            head = msgspec.json.decode(file.readline(), type=Head)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                if line.startswith(_TAIL):
                    last_number = msgspec.json.decode(line, type=_Tail).last_number
                    continue
                number = _number(line)
                count += number > 0
                last_number = max(last_number, number)
                if number <= after or next_after is not None:
                    continue
                if len(entries) >= limit or size > _PAGE_BYTES:
                    next_after = entries[-1].number if entries else after
                    continue
                entry = _decode(line)
                count -= entry is None
                entries += [] if entry is None else [entry]
                size += len(line)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    return Page(head=head, entries=entries, count=count, last_number=last_number, next_after=next_after)


_NUMBER = re.compile(rb'"number": ?(\d+)')


def _number(line: bytes) -> int:
    """The number of an entry; it is the second field, right after the kind."""
    found = _NUMBER.search(line, 0, 80)
    return int(found[1]) if found else 0


def _decode(line: bytes) -> JournalEntry | None:
    """None for a line that a crash left in pieces: it is missing."""
    try:
        return _entries.decode(line)
    except msgspec.DecodeError:
        pass
    try:
        return msgspec.convert(json.loads(line), JournalEntry)
    except ValueError:
        return None
