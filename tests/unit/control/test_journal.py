"""A sandbox's journal: bounded, honest about what is missing, private, and whole after restarts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cellbox.control import journal as module
from cellbox.control.journal import Journals, SandboxJournal
from cellbox.errors import SandboxNotFoundError
from cellbox.protocol.commands import CommandResult, RunCommand
from cellbox.protocol.contexts import Execution
from cellbox.protocol.journal import CellEntry, CommandEntry

ID = "00000000-0000-4000-8000-000000000001"
MIB = 1024 * 1024


def journals(folder: Path, limit_bytes: int = MIB, keep_seconds: float = 60) -> Journals:
    return Journals(folder / "journals", limit_bytes=limit_bytes, keep_seconds=keep_seconds)


def note(journal: SandboxJournal, code: str, execution: Execution | None = None) -> None:
    journal.add_cell(time.time(), "k1", "python", code, execution or Execution(stdout="out"))


async def test_cells_and_commands_come_back_in_order(tmp_path: Path) -> None:
    kept = journals(tmp_path)
    journal = kept.open(ID, "alice", "base")
    note(journal, "1 / 0", Execution(error="ZeroDivisionError", exit=1, results=[{"text/plain": "\udcff"}]))
    body = RunCommand(cmd="cat", stdin="in", env={"TOKEN": "secret"}, cwd="/tmp")
    journal.add_command(time.time(), body, CommandResult(stdout="in", stderr="", exit_code=3))
    note(journal, "abandoned", None)
    found = await kept.read("alice", ID)
    cell, command, _ = found.entries
    assert isinstance(cell, CellEntry) and cell.execution is not None
    assert (cell.code, cell.execution.error, cell.execution.results) == (
        "1 / 0",
        "ZeroDivisionError",
        [{"text/plain": "\udcff"}],
    )
    assert isinstance(command, CommandEntry) and command.result is not None
    assert (command.cmd, command.stdin, command.cwd, command.result.exit_code) == ("cat", "in", "/tmp", 3)
    assert command.env_names == ["TOKEN"] and b"secret" not in (tmp_path / f"journals/{ID}.jsonl").read_bytes()
    assert [entry.number for entry in found.entries] == [1, 2, 3]
    assert (found.missing, found.next_after, found.template) == (0, None, "base")


async def test_it_is_its_owners_and_no_way_to_other_files(tmp_path: Path) -> None:
    kept = journals(tmp_path)
    note(kept.open(ID, "alice", "base"), "1")
    (tmp_path / "outside.jsonl").write_text("{}")
    for owner, name in (("bob", ID), ("alice", "../outside"), ("alice", ID[:-1] + "2"), ("alice", "")):
        with pytest.raises(SandboxNotFoundError):
            await kept.read(owner, name)


async def test_pages(tmp_path: Path) -> None:
    kept = journals(tmp_path)
    journal = kept.open(ID, "alice", "base")
    for number in range(5):
        note(journal, str(number))
    first = await kept.read("alice", ID, 0, 2)
    assert ([entry.number for entry in first.entries], first.next_after, first.missing) == ([1, 2], 2, 0)
    rest = await kept.read("alice", ID, 2, 10)
    assert ([entry.number for entry in rest.entries], rest.next_after) == ([3, 4, 5], None)


async def test_a_full_journal_says_what_is_missing(tmp_path: Path) -> None:
    kept = journals(tmp_path, limit_bytes=64 * 1024)
    journal = kept.open(ID, "alice", "base")
    for _ in range(40):
        note(journal, "x" * 1000, Execution(stdout="y" * 3000))
        await journal.flush()
    await kept.aclose()
    assert (tmp_path / f"journals/{ID}.jsonl").stat().st_size < 66 * 1024
    found = await journals(tmp_path).read("alice", ID)
    assert 0 < len(found.entries) < 40 and found.missing == 40 - len(found.entries)
    assert not found.entries[0].omitted_bytes
    last = found.entries[-1]
    assert isinstance(last, CellEntry) and last.execution is not None
    assert (last.execution.stdout, last.omitted_bytes) == ("", 3000)  # code is kept longer than outputs


async def test_long_texts_are_cut_and_counted(tmp_path: Path) -> None:
    kept = journals(tmp_path, limit_bytes=16 * MIB)
    note(kept.open(ID, "alice", "base"), "1", Execution(stdout="a" * MIB, results=[{"image/png": "b" * 5 * MIB}]))
    (entry,) = (await kept.read("alice", ID)).entries
    assert isinstance(entry, CellEntry) and entry.execution is not None
    assert len(entry.execution.stdout) < 300 * 1024 and entry.execution.results == [{}]
    assert entry.omitted_bytes == MIB - 256 * 1024 + 5 * MIB


async def test_it_goes_on_after_a_restart_and_survives_a_line_cut_short(tmp_path: Path) -> None:
    kept = journals(tmp_path)
    note(kept.open(ID, "alice", "base"), "before")
    await kept.aclose()
    with (tmp_path / f"journals/{ID}.jsonl").open("ab") as file:
        file.write(b'{"kind":"cell","number":2,"started_at')
    again = journals(tmp_path)
    assert len((await again.read("alice", ID)).entries) == 1
    note(again.open(ID, "alice", "base"), "after")
    found = await again.read("alice", ID)
    assert [(entry.number, entry.code) for entry in found.entries if isinstance(entry, CellEntry)] == [
        (1, "before"),
        (2, "after"),
    ]


async def test_the_old_and_the_surplus_are_swept_and_the_living_are_not(tmp_path: Path) -> None:
    kept = journals(tmp_path, limit_bytes=1000, keep_seconds=1000)
    for number in range(40):
        path = tmp_path / "journals" / f"{number}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 1000)
        os.utime(path, (time.time() - number, time.time() - number))
    os.utime(tmp_path / "journals/3.jsonl", (0, 0))
    note(kept.open(ID, "alice", "base"), "1")
    await kept.read("alice", ID)
    os.utime(tmp_path / f"journals/{ID}.jsonl", (0, 0))
    kept.sweep()
    left = {path.stem for path in (tmp_path / "journals").iterdir()}
    assert ID in left and "3" not in left and "0" in left
    assert len(left) == 33
    await kept.aclose()


async def test_without_room_nothing_is_kept(tmp_path: Path) -> None:
    kept = journals(tmp_path, limit_bytes=0)
    note(kept.open(ID, "alice", "base"), "1")
    found = await kept.read("alice", ID)
    assert (found.entries, found.missing) == ([], 1)
    await kept.aclose()
    assert not list((tmp_path / "journals").iterdir())


async def test_writing_is_left_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noting a cell opens no file: what it costs is a fraction of what the fastest cell takes."""
    monkeypatch.setattr(module, "WRITE_AFTER_SECONDS", 3600.0)
    journal = journals(tmp_path).open(ID, "alice", "base")
    started = time.perf_counter()
    for _ in range(1000):
        note(journal, "1 + 1")
    assert (time.perf_counter() - started) / 1000 < 0.001
    assert not list((tmp_path / "journals").iterdir())
    await journal.wait_closed()
