from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cellbox.wire import messages
from cellbox.wire.messages import ListDirectory, MakeDirectory, Move, ReadFile, Remove, Stat, WriteFile

if TYPE_CHECKING:
    from .conftest import HostEnd


def test_write_then_read(guest: HostEnd, tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "b" / "c.bin")
    data = os.urandom(3_000_001)
    assert guest.do(WriteFile(path=path), data).outcome == {"type": "file_written", "size": len(data)}
    assert guest.do(ReadFile(path=path)).content == data
    part = guest.do(ReadFile(path=path, offset=10, length=5))
    assert part.content == data[10:15]
    assert part.outcome == {"type": "file_read", "size": len(data), "sent": 5}
    assert os.stat(path).st_mode & 0o777 == 0o644


def test_replaced_file_keeps_its_mode_and_links_are_followed(guest: HostEnd, tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    guest.do(WriteFile(path=str(link)), b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o600
    guest.do(WriteFile(path=str(link), append=True), b"er")
    assert target.read_bytes() == b"newer"


def test_cancelled_write_leaves_the_old_content_and_no_trace(guest: HostEnd, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    writing = guest.open(WriteFile(path=str(tmp_path / "file")), b"half", end=False)
    guest.do(messages.Ping())
    guest.cancel(writing)
    assert guest.wait(writing).outcome["code"] == "cancelled"
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("relative", "invalid_request"),
        ("/a\0b", "invalid_request"),
        ("/" + "x" * 5000, "invalid_request"),
        ("/" + "x" * 300, "invalid_request"),
        ("/nope", "path_not_found"),
        ("/etc", "path_conflict"),
        ("/etc/passwd/x", "path_conflict"),
        ("/dev/null", "path_conflict"),
    ],
)
def test_impossible_reads_have_a_typed_failure(guest: HostEnd, path: str, code: str) -> None:
    assert guest.do(ReadFile(path=path)).outcome["code"] == code


def test_special_files_and_loops_are_refused_at_once(guest: HostEnd, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    for name in ("fifo", "loop", "socket"):
        path = str(tmp_path / name)
        assert guest.do(ReadFile(path=path)).outcome["code"] == "path_conflict"
        for append in (False, True):
            assert guest.do(WriteFile(path=path, append=append), b"x").outcome["code"] == "path_conflict"


def test_pseudo_files_are_read_to_their_end(guest: HostEnd) -> None:
    done = guest.do(ReadFile(path="/proc/self/status"))
    assert done.outcome["size"] == 0
    assert done.outcome["sent"] == len(done.content) > 100


def test_odd_names_survive(guest: HostEnd, tmp_path: Path) -> None:
    names = ["报告 2024.csv", 'naïve "q".txt', "-x", "new\nline", "%2F", "trail ", "\udcff\udcfe", "n" * 255]
    for name in names:
        guest.do(WriteFile(path=f"{tmp_path}/{name}"), b"x")
        assert guest.do(Stat(path=f"{tmp_path}/{name}")).outcome["name"] == name
    listed = guest.do(ListDirectory(path=str(tmp_path)))
    assert [entry["name"] for event in listed.events for entry in event["entries"]] == sorted(names)


def test_listing_comes_in_batches_and_never_follows_links(guest: HostEnd, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for number in range(2500):
        (tmp_path / "d" / f"{number:05}").touch()
    (tmp_path / "up").symlink_to(tmp_path)
    done = guest.do(ListDirectory(path=str(tmp_path), depth=3))
    assert done.outcome == {"type": "listed", "count": 2502, "problems": [], "has_more": False}
    assert [len(event["entries"]) for event in done.events] == [1000, 1000, 502]
    last = done.events[-1]["entries"][-1]
    assert (last["kind"], last["target"]) == ("link", str(tmp_path))


def test_deep_trees_are_listed_and_removed(guest: HostEnd, tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    listed = guest.do(ListDirectory(path=str(tmp_path / "d"), depth=5000)).outcome
    assert listed["type"] == "listed"
    assert listed["problems"]
    assert guest.do(Remove(path=str(tmp_path / "d"))).outcome == {"type": "done"}
    assert os.listdir(tmp_path) == []


def test_remove_spares_what_links_point_to(guest: HostEnd, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    assert guest.do(Remove(path=str(tmp_path / "tree"), recursive=False)).outcome["code"] == "path_conflict"
    assert guest.do(Remove(path=str(tmp_path / "tree"))).outcome == {"type": "done"}
    assert (tmp_path / "kept" / "file").exists()
    assert guest.do(Remove(path=str(tmp_path / "tree"))).outcome["code"] == "path_not_found"


def test_existing_directory_is_left_as_it_is(guest: HostEnd, tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    assert guest.do(MakeDirectory(path=str(tmp_path))).outcome == {"type": "done"}
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777
    guest.do(MakeDirectory(path=str(tmp_path / "a" / "b"), mode=0o700))
    assert ((tmp_path / "a").stat().st_mode & 0o777, (tmp_path / "a" / "b").stat().st_mode & 0o777) == (0o755, 0o700)
    (tmp_path / "file").touch()
    assert guest.do(MakeDirectory(path=str(tmp_path / "file"))).outcome["code"] == "path_conflict"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_move_keeps_modes_and_links(guest: HostEnd, tmp_path: Path, elsewhere: bool) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True, mode=0o700)
    (source / "sub" / "file").write_text("x")
    (source / "link").symlink_to("sub/file")
    target = Path(f"/dev/shm/cellbox-test-{os.getpid()}") if elsewhere else tmp_path / "new" / "target"
    try:
        assert guest.do(Move(source=str(source), target=str(target))).outcome == {"type": "done"}
        assert not source.exists()
        assert (target / "link").read_text() == "x"
        assert (target / "sub").stat().st_mode & 0o777 == 0o700
    finally:
        guest.do(Remove(path=str(target)))


def test_move_conflicts(guest: HostEnd, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    (tmp_path / "other").write_text("2")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    file = str(tmp_path / "file")
    assert guest.do(Move(source=file, target=str(tmp_path / "full"))).outcome["code"] == "path_conflict"
    refused = guest.do(Move(source=file, target=str(tmp_path / "other"), overwrite=False))
    assert refused.outcome["code"] == "path_conflict"
    inside = guest.do(Move(source=str(tmp_path / "full"), target=str(tmp_path / "full" / "sub")))
    assert inside.outcome["code"] == "invalid_request"
    assert guest.do(Move(source="/nope", target=file)).outcome["code"] == "path_not_found"
