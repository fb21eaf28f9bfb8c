"""Watches: every change is told once, in order, also below new directories; a flood is told as one."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cellbox.guest.pending import MAX_PENDING, Pending
from cellbox.wire.messages import Ping, WatchFiles

if TYPE_CHECKING:
    from .conftest import HostEnd, Operation


@pytest.fixture(scope="module")
def guest(shared_guest: HostEnd) -> HostEnd:
    return shared_guest


@pytest.fixture(autouse=True)
def no_watch_is_left(guest: HostEnd) -> Iterator[None]:
    yield
    for watch in _open:
        if not watch.outcome:
            guest.cancel(watch)
            guest.wait(watch)
    _open.clear()


_open: list[Operation] = []


def begin(guest: HostEnd, path: Path, *, recursive: bool = False) -> Operation:
    watch = guest.open(WatchFiles(path=str(path), recursive=recursive))
    _open.append(watch)
    while not watch.events:
        guest.read(10)
    assert watch.events[0]["changes"] == []
    return watch


def changes(watch: Operation) -> list[dict[str, Any]]:
    return [change for event in watch.events for change in event["changes"]]


def wait_for(guest: HostEnd, watch: Operation, path: Path) -> list[tuple[str, ...]]:
    """Return what was told up to the first word of `path`."""
    deadline = time.monotonic() + 20
    while not any(change["path"] == str(path) for change in changes(watch)):
        guest.read(deadline - time.monotonic())
    return [
        (change["kind"], Path(change["path"]).name, *([Path(change["target"]).name] if change["target"] else []))
        for change in changes(watch)
    ]


def test_changes_are_told_in_order_and_merged(guest: HostEnd, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    watch = begin(guest, tmp_path)
    with (tmp_path / "old").open("a") as file:
        for _ in range(50):
            file.write("more")
            file.flush()
    (tmp_path / "new").write_text("x")
    (tmp_path / "old").chmod(0o600)
    (tmp_path / "new").rename(tmp_path / "newer")
    (tmp_path / "old").unlink()
    (tmp_path / "end").mkdir()
    assert wait_for(guest, watch, tmp_path / "end") == [
        ("modified", "old"),
        ("created", "new"),
        ("moved", "new", "newer"),
        ("removed", "old"),
        ("created", "end"),
    ]
    guest.cancel(watch)
    assert guest.wait(watch).outcome["type"] == "done"


def test_new_directories_are_watched_with_what_is_in_them(guest: HostEnd, tmp_path: Path) -> None:
    watch = begin(guest, tmp_path, recursive=True)
    os.makedirs(tmp_path / "a/b/c")
    (tmp_path / "a/b/c/deep").write_text("x")
    wait_for(guest, watch, tmp_path / "a/b/c/deep")
    (tmp_path / "a").rename(tmp_path / "z")
    (tmp_path / "z/b/c/after").write_text("x")
    wait_for(guest, watch, tmp_path / "z/b/c/after")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    (tmp_path / "z").rename(outside)
    (outside / "unseen").write_text("x")
    (tmp_path / "end").mkdir()
    told = wait_for(guest, watch, tmp_path / "end")
    shutil.rmtree(outside)
    assert ("moved", "a", "z") in told
    assert ("removed", "z") in told
    assert not any("unseen" in names for names in told)


def test_a_watch_ends_with_what_it_watches(guest: HostEnd, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    watch = begin(guest, tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert guest.wait(watch).outcome["type"] == "done"
    assert [change["kind"] for change in changes(watch)] == ["removed"]
    assert guest.do(WatchFiles(path=str(tmp_path / "gone"))).outcome["code"] == "path_not_found"


def test_one_file_can_be_watched(guest: HostEnd, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("x")
    (tmp_path / "other").write_text("x")
    watch = begin(guest, tmp_path / "one")
    (tmp_path / "other").write_text("y")
    (tmp_path / "one").write_text("y")
    assert wait_for(guest, watch, tmp_path / "one") == [("modified", "one")]


def test_ten_thousand_changes_of_one_directory_are_all_told_or_overflow(guest: HostEnd, tmp_path: Path) -> None:
    watch = begin(guest, tmp_path)
    for index in range(MAX_PENDING):
        (tmp_path / f"f{index}").touch()
    told = wait_for(guest, watch, tmp_path / f"f{MAX_PENDING - 1}")
    created = {names[1] for names in told if names[0] == "created"}
    assert len(created) == MAX_PENDING or ("overflow", tmp_path.name) in told
    assert guest.do(Ping()).outcome["type"] == "done"


async def test_what_nobody_reads_is_dropped_and_said() -> None:
    pending = Pending()
    for index in range(MAX_PENDING + 10):
        pending.add("created", f"/f{index}")
    batch = pending.take(MAX_PENDING)
    assert [change.kind for change in batch[:2]] == ["overflow", "created"]
    assert len(batch) == 10
    assert pending.take(10) == []


def test_too_many_watches_are_refused(guest: HostEnd, tmp_path: Path) -> None:
    watches = [begin(guest, tmp_path) for _ in range(100)]
    refused = guest.do(WatchFiles(path=str(tmp_path))).outcome
    assert refused["code"] == "invalid_request"
    assert "end one first" in refused["message"]
    for watch in watches:
        guest.cancel(watch)
    for watch in watches:
        guest.wait(watch)
    begin(guest, tmp_path)
