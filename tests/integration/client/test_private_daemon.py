"""With nothing configured there is no server to start: the first call starts a daemon, the next process finds it."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ...conftest import TEMPLATES_DIR

PROGRAM = """
from cellbox import Sandbox
with Sandbox.create("base", ttl_seconds=60) as sandbox:
    print(sandbox.exec("echo hi").stdout, end="")
"""


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """Short enough for a socket's path; no daemon is left in it."""
    with tempfile.TemporaryDirectory(prefix="cellbox-") as folder:
        yield Path(folder)
        path = Path(folder, "daemon.sock")
        if path.exists():
            os.kill(listener(path), signal.SIGTERM)
            deadline = time.monotonic() + 30
            while path.exists():
                assert time.monotonic() < deadline, "the daemon did not end"
                time.sleep(0.05)


def listener(path: Path) -> int:
    """The process that listens on a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[0]


@pytest.mark.engine
def test_the_first_call_starts_a_daemon_that_the_next_process_finds(runtime_dir: Path, tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("CELLBOX_API", "PANDASTACK_"))},
        "HOME": str(tmp_path),
        "CELLBOX_RUNTIME_DIR": str(runtime_dir),
        "CELLBOX_DATA_DIR": str(tmp_path),
        "CELLBOX_TEMPLATES_DIR": str(TEMPLATES_DIR),
    }
    found: list[tuple[str, int]] = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        found.append((done.stdout, listener(runtime_dir / "daemon.sock")))
    assert found[0] == ("hi\n", found[1][1])
    assert found[1][0] == "hi\n"
