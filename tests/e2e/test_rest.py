"""Pausing and hibernating: nothing is lost, nothing is used, and time counts as it should."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import cellbox
from cellbox import errors

from .conftest import Daemon, traces_of


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_paused_one_stands_still_and_goes_on(new_sandbox: Callable[..., cellbox.Sandbox], daemon: Daemon) -> None:
    box = new_sandbox(ttl_seconds=300)
    code = "import time\nstart = time.monotonic()\nx = 1"
    assert box.run_code(code).error is None
    box.pause()
    box.pause()
    assert box.refresh().status == "paused"
    assert box.expires_at is None
    for ask in (lambda: box.exec("true"), lambda: box.run_code("x"), lambda: box.filesystem.read("/etc/hostname")):
        with pytest.raises(errors.SandboxNotRunningError, match="resume"):
            ask()
    used = box.usage().host_cpu_seconds
    snapshot = box.snapshot()  # a paused one can be saved, and is paused afterwards
    assert box.refresh().status == "paused"
    time.sleep(0.5)
    assert box.usage().host_cpu_seconds < used + 5
    box.resume()
    box.resume()
    now = time.time()
    assert abs(float(box.run_code("print(time.time())").stdout) - now) < 2
    assert box.run_code("time.monotonic() > start, x").text == "(True, 1)"
    assert box.expires_at is None  # as of the last answer
    assert box.refresh().expires_at is not None
    with daemon.client() as client:
        client.snapshots.delete(snapshot.id)


def test_cycles_of_hibernation_lose_no_byte(new_sandbox: Callable[..., cellbox.Sandbox], daemon: Daemon) -> None:
    box = new_sandbox(template="base", ttl_seconds=300)
    box.exec("mkdir d; nohup sleep 3000 > /dev/null 2>&1 &", check=True)
    written: list[str] = []
    for cycle in range(4):
        done = box.exec(f"head -c 2000000 /dev/urandom > d/{cycle}; sha256sum d/*", check=True)
        assert done.stdout.splitlines()[:cycle] == written
        written = done.stdout.splitlines()
        box.hibernate()
        box.hibernate()
        assert (box.status, daemon.processes_of(box.id)) == ("hibernated", [])
        if cycle % 2:
            box.wake()
            box.wake()
            assert box.status == "running"
    assert box.exec("sha256sum d/*").stdout.splitlines() == written
    assert box.exec("pgrep -xc sleep").stdout == "1\n"
    box.hibernate()
    image = daemon.data_dir / "hibernated" / box.id
    assert image.is_dir()
    with pytest.raises(errors.SandboxNotRunningError, match="wake it"):
        box.pause()
    box.kill()
    assert not image.exists()
    with pytest.raises(errors.SandboxNotFoundError):
        box.wake()


def test_what_waits_for_a_hibernated_one_is_told(new_sandbox: Callable[..., cellbox.Sandbox]) -> None:
    box = new_sandbox(template="base")
    with box.exec_stream("echo begun; sleep 3; echo done > /workspace/f; sleep 300") as events:
        assert isinstance(next(events), cellbox.StdoutChunk)
        box.hibernate()
        with pytest.raises(errors.SandboxNotRunningError, match="hibernated"):
            next(events)
    wait_for(lambda: box.exec("cat /workspace/f").stdout == "done\n")  # the command went on


def test_snapshots_and_hibernated_ones_survive_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBOX_HIBERNATE_IDLE_SECONDS", "0.5")
    monkeypatch.setenv("CELLBOX_MAX_SNAPSHOTS_PER_OWNER", "2")
    monkeypatch.setenv("CELLBOX_MAX_SANDBOXES_PER_OWNER", "4")
    daemon = Daemon(tmp_path / "d")
    daemon.start()
    try:
        with daemon.client() as client:
            source = client.sandboxes.create("base", ttl_seconds=300)
            source.exec("echo saved > f")
            snapshot, damaged = source.snapshot(), source.snapshot()
            with pytest.raises(errors.QuotaExceededError, match="2 of 2"):
                source.snapshot()
            with pytest.raises(errors.QuotaExceededError, match="4"):
                source.fork_tree(4)
            assert [box.id for box in client.sandboxes.list()] == [source.id]
            source.kill()
            idle = client.sandboxes.create("base", persistent=True, metadata={"a": "b"})
            idle.exec("echo idle > f")
            timed = client.sandboxes.create("base", ttl_seconds=1, on_timeout="hibernate")
            timed.exec("echo timed > f")
            wait_for(lambda: {idle.refresh().status, timed.refresh().status} == {"hibernated"})
        pages = daemon.data_dir / "snapshots" / damaged.id / "image/pages.img"
        with pages.open("r+b") as file:
            file.seek(4096)
            byte = file.read(1)
            file.seek(4096)
            file.write(bytes([byte[0] ^ 1]))
        daemon.kill()
        daemon.start()
        with daemon.client() as client:
            assert {box.id: box.status for box in client.sandboxes.list()} == {
                idle.id: "hibernated",
                timed.id: "hibernated",
            }
            again = client.sandboxes.get(idle.id)
            assert (again.persistent, again.metadata) == (True, {"a": "b"})
            assert again.exec("cat f").stdout == "idle\n"
            again = client.sandboxes.get(timed.id)
            again.set_ttl(300)
            assert again.exec("cat f").stdout == "timed\n"
            assert again.refresh().expires_at is not None
            with again.fork() as child:
                assert child.exec("cat f").stdout == "timed\n"
            copy = client.sandboxes.create(from_snapshot=snapshot.id)
            assert copy.exec("cat f").stdout == "saved\n"
            client.snapshots.delete(snapshot.id)  # the copy does not need it
            assert copy.exec("cat f").stdout == "saved\n"
            with pytest.raises(errors.SnapshotUnusableError, match=r"pages\.img"):
                client.sandboxes.create(from_snapshot=damaged.id)
            assert len(client.sandboxes.list()) == 3
        daemon.stop()
        assert traces_of(daemon) == []
        daemon.start()
        with daemon.client() as client:
            assert [box.id for box in client.sandboxes.list()] == [idle.id]  # persistent: saved as the daemon ended
            assert client.sandboxes.get(idle.id).exec("cat f").stdout == "idle\n"
        daemon.stop()
    finally:
        daemon.kill()
