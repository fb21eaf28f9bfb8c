"""The pool through a daemon: it is filled from the setting, serves the SDK, and a crash leaves nothing of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import cellbox

from .conftest import Daemon, traces_of


def machines(daemon: Daemon) -> set[str]:
    return {entry.name for entry in (daemon.data_dir / "engine/machines").iterdir() if entry.is_symlink()}


def until_ready(client: cellbox.Client, count: int) -> None:
    deadline = time.monotonic() + 60
    while client.pool.status().ready != count:
        assert time.monotonic() < deadline, client.pool.status()
        time.sleep(0.05)


def test_it_fills_serves_and_is_swept_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBOX_POOL", "base=1")
    daemon = Daemon(tmp_path / "d")
    daemon.start()
    try:
        with daemon.client() as client:
            until_ready(client, 1)
            status = client.pool.status()
            assert status.entries[0].template == "base"
            assert status.memory_bytes > 10_000_000
            with cellbox.Sandbox.create(template="base", env={"WHOSE": "mine"}, client=client) as box:
                assert box.boot_mode == "pool"
                assert box.exec("echo $WHOSE").stdout == "mine\n"
            until_ready(client, 1)
            assert client.pool.status().hits == 1
            left = machines(daemon)
        daemon.kill()
        daemon.start()
        with daemon.client() as client:
            assert not left & machines(daemon)
            client.pool.resize({"base": (0, 2)})
            until_ready(client, 0)
            with pytest.raises(cellbox.InvalidRequestError):
                client.pool.resize({"base": (3, 2)})
        daemon.stop()
        assert traces_of(daemon) == []
    finally:
        daemon.kill()  # of no effect on one that has ended
