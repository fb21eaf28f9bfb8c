"""Files under load: large ones, many of them, deep trees, and changes under the reader's eyes."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cellbox
from cellbox import errors

from .conftest import Daemon


@pytest.fixture(scope="module")
def box(client: cellbox.Client) -> Iterator[cellbox.Sandbox]:
    with cellbox.Sandbox.create("base", ttl_seconds=600, disk_mb=2048, client=client) as shared:
        yield shared


@pytest.fixture(scope="module")
def files(box: cellbox.Sandbox) -> cellbox.Filesystem:
    return box.filesystem


def test_what_was_written_is_there_for_the_next_command(box: cellbox.Sandbox, files: cellbox.Filesystem) -> None:
    for n in range(60):
        files.write("/tmp/next", str(n))
        assert box.exec("cat /tmp/next").stdout == str(n)
        box.exec(f"echo back {n} > /tmp/next")
        assert files.read_text("/tmp/next") == f"back {n}\n"


def test_large_files_need_no_memory(daemon: Daemon, files: cellbox.Filesystem) -> None:
    megabytes, sent, received = 300, hashlib.sha256(), hashlib.sha256()
    assert daemon.process is not None
    status = Path(f"/proc/{daemon.process.pid}/status")

    def resident() -> int:
        return int(status.read_text().partition("VmRSS:")[2].split()[0]) // 1024

    def content() -> Iterator[bytes]:
        block = os.urandom(1 << 20)
        for n in range(megabytes):
            piece = n.to_bytes(8, "big") + block
            piece = piece[: 1 << 20]
            sent.update(piece)
            yield piece

    before, most, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            most[0] = max(most[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert files.upload(content(), "/tmp/large").bytes == megabytes << 20
        for piece in files.iter_bytes("/tmp/large"):
            received.update(piece)
    finally:
        done.set()
        watcher.join()
    assert received.digest() == sent.digest()
    assert most[0] - before < 64, f"the daemon grew by {most[0] - before} MB"
    files.remove("/tmp/large")
    files.upload((bytes([n % 251]) * (n % 17 + 1) for n in range(5000)), "/tmp/crumbs")
    assert files.stat("/tmp/crumbs").size == sum(n % 17 + 1 for n in range(5000))


def test_writes_are_whole_or_not_at_all(box: cellbox.Sandbox, files: cellbox.Filesystem) -> None:
    def fails() -> Iterator[bytes]:
        yield b"new" * 100_000
        raise OSError("the source broke")

    files.write("/tmp/whole", "old")
    with pytest.raises(OSError, match="source broke"):
        files.upload(fails(), "/tmp/whole")
    assert files.read_text("/tmp/whole") == "old"
    letters = [letter * 500_000 for letter in "abcd"]
    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(files.write, "/tmp/whole", letters[n % 4]) for n in range(24)]
        while not all(write.done() for write in writes):
            assert files.read_text("/tmp/whole") in {"old", *letters}
    deadline = time.monotonic() + 5
    while box.exec("ls -A /tmp | grep -c cellbox-; true").stdout != "0\n":
        assert time.monotonic() < deadline, "partial files are left behind"


def test_a_file_that_changes_while_it_is_read(box: cellbox.Sandbox, files: cellbox.Filesystem) -> None:
    files.write("/tmp/changes", bytes(40 << 20))
    reading = files.iter_bytes("/tmp/changes")
    next(reading)
    box.exec("truncate -s 1000000 /tmp/changes")
    with pytest.raises(errors.CellboxError):
        for _ in reading:
            pass
    files.write("/tmp/changes", bytes(10 << 20))
    reading = files.iter_bytes("/tmp/changes")
    size = len(next(reading))
    box.exec("head -c 10000000 /dev/zero >> /tmp/changes")
    assert size + sum(map(len, reading)) == 10 << 20, "one that grows is read as far as it went at first"


def test_pathological_trees(box: cellbox.Sandbox, files: cellbox.Filesystem) -> None:
    made = box.exec(
        'python3 -c \'import os\nos.makedirs("/tmp/many")\nfor n in range(30000): open(f"/tmp/many/{n}", "w").close()\n'
        'os.chdir("/tmp")\nfor n in range(10000): os.mkdir("d"); os.chdir("d")\'; truncate -s 1T /tmp/sparse',
        timeout_seconds=60,
    )
    assert made.exit_code == 0, made.stderr
    assert len(files.list("/tmp/many")) == 30_000
    assert box.exec("echo on").stdout == "on\n"
    files.remove("/tmp/many", recursive=True)
    files.remove("/tmp/d", recursive=True)
    assert not files.exists("/tmp/d")
    assert files.stat("/tmp/sparse").size == 1 << 40
    assert files.read("/tmp/sparse", offset=1 << 39, length=1000) == bytes(1000)
