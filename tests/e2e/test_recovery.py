"""A daemon that dies leaves nothing behind once the next one has started; a decoy is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

import cellbox
from cellbox import errors

from .conftest import Daemon, traces_of


def test_kill_9_leaves_nothing_after_the_next_start(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "d")
    daemon.start()
    decoy = subprocess.Popen(["/bin/sleep", "300"], executable="/bin/sleep")
    try:
        with daemon.client() as client:
            boxes = [cellbox.Sandbox.create(template="base", client=client) for _ in range(3)]
            assert boxes[0].exec("echo hi").stdout == "hi\n"
            daemon.kill()
            with pytest.raises((errors.DaemonUnavailableError, errors.ConnectionLostError)):
                boxes[0].exec("echo hi")
        daemon.start()
        assert traces_of(daemon) == []
        assert decoy.poll() is None
        with daemon.client() as client:
            assert client.sandboxes.list() == []
            with pytest.raises(errors.SandboxNotFoundError):
                client.sandboxes.get(boxes[0].id)
            with cellbox.Sandbox.create(template="base", client=client) as box:
                assert box.exec("echo again").stdout == "again\n"
        daemon.stop()
        assert traces_of(daemon) == []
    finally:
        daemon.kill()  # of no effect on one that has ended, so that a failed test leaves none behind
        decoy.kill()
        decoy.wait()


def test_a_data_directory_has_one_daemon(daemon: Daemon) -> None:
    second = Daemon(daemon.data_dir)
    second.admin_key = daemon.admin_key
    with pytest.raises(AssertionError, match="another daemon"):
        second.start()
    with daemon.client() as client:
        assert client.version()


def test_a_missing_engine_is_a_typed_error_and_no_weaker_boundary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLBOX_RUNSC", str(tmp_path / "no-such-runsc"))
    daemon = Daemon(tmp_path / "d")
    daemon.start()
    try:
        with daemon.client() as client, pytest.raises(errors.EngineUnavailableError, match="doctor"):
            cellbox.Sandbox.create(template="base", client=client, retry_seconds=0)
    finally:
        daemon.stop()


def test_a_machine_that_dies_is_reported_and_its_calls_end(daemon: Daemon, client: cellbox.Client) -> None:
    with cellbox.Sandbox.create(template="base", client=client) as box:
        assert daemon.processes_of(box.id), "the machine's processes carry its name"
        for pid in daemon.processes_of(box.id):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while box.refresh().status != "failed":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with pytest.raises(errors.SandboxNotRunningError):
            box.exec("echo hi")
