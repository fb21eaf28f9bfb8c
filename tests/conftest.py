"""Fixtures for all tests, and the real daemon that those share which need the engine."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import cellbox
from cellbox.control.settings import default_data_dir

TEMPLATES_DIR = Path(
    os.environ.get("CELLBOX_TEMPLATES_DIR") or os.environ.get("CELLBOX_DATA_DIR") or default_data_dir()
)
START_SECONDS = 60.0


@dataclass
class Daemon:
    """A daemon in a process of its own."""

    data_dir: Path
    canary: str = field(default_factory=lambda: secrets.token_hex(16))
    """A secret in the daemon's environment that must never be seen in a sandbox."""
    admin_key: str = field(default_factory=lambda: f"pds_{secrets.token_hex(20)}")
    url: str = ""
    process: subprocess.Popen[bytes] | None = None
    log_file: Path = Path(os.devnull)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "CELLBOX_TEMPLATES_DIR": str(TEMPLATES_DIR),
            "CELLBOX_BOOTSTRAP_KEY": self.admin_key,
            "CELLBOX_LOG_FORMAT": "json",
            "CANARY": self.canary,
        }
        log_file = self.data_dir / f"daemon-{secrets.token_hex(4)}.log"
        with log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cellbox.cli", "serve", "--listen", "127.0.0.1:0", "--data-dir", self.data_dir],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.log_file = log_file
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the daemon ended at its start:\n{self.log()}"
            for line in log_file.read_text().splitlines():
                if '"event":"listening"' in line:
                    self.url = json.loads(line)["address"]
                    return
            time.sleep(0.02)
        raise AssertionError(f"the daemon did not come up:\n{self.log()}")

    def stop(self) -> None:
        """End it as an operator would, and assert that it leaves in good order."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(30) == 0, self.log()

    def kill(self) -> None:
        """End it as a crash would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def processes_of(self, sandbox_id: str) -> list[int]:
        """Return the engine's processes of a sandbox."""
        machine = self.data_dir / "engine/machines" / sandbox_id
        name = machine.readlink().name if machine.is_symlink() else sandbox_id  # one made ahead has a name of its own
        found = subprocess.run(["pgrep", "-f", f"runsc.*{name}"], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")[-4000:]

    def client(self, key: str | None = None) -> cellbox.Client:
        return cellbox.Client(api_url=self.url, api_key=key or self.admin_key)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for the whole session: real engine, real templates, reached over TCP as a stranger would."""
    running = Daemon(tmp_path_factory.mktemp("daemon"))
    running.start()
    yield running
    running.stop()
    assert traces_of(running) == []
    assert '"level":"error"' not in running.log(), running.log()


def traces_of(daemon: Daemon) -> list[str]:
    """Return what machines of this daemon are left on the host: processes, cgroups, mounts, state files."""
    state = str(daemon.data_dir / "engine")
    found = [line for line in Path("/proc/mounts").read_text().splitlines() if state in line]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if state in command and "runsc" in command:
                    found.append(f"process {entry.name}: {command[:200]}")
    for folder in ("r", "machines"):
        path = Path(state) / folder
        if path.is_dir():
            found += [str(item) for item in path.iterdir()]
    return found
