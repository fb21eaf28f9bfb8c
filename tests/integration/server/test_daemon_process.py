"""How a daemon in a process of its own ends: by a signal, by a second one, by having nothing to do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import httpx2
import pytest

DAEMON = """
import sys
from pathlib import Path
import cellbox.server.serve as module
from cellbox.control.settings import Settings, Secret
from cellbox.testing.fake_control import FakeControl
module.serve.__kwdefaults__["make_control"] = FakeControl
module.serve.__kwdefaults__["on_ready"] = lambda address: print(address, flush=True)
sys.exit(module.run(Settings(listen={listen!r}, data_dir=Path({data_dir!r}), bootstrap_key=Secret({key!r}),
                             shutdown_grace_seconds={grace}, idle_exit_seconds={idle}, log_format="json")))
"""
KEY = "pds_" + "ab" * 16


class Daemon:
    def __init__(
        self, tmp_path: Path, listen: str = "127.0.0.1:0", grace: float = 5, idle: float | None = None
    ) -> None:
        script = textwrap.dedent(DAEMON).format(listen=listen, data_dir=str(tmp_path), key=KEY, grace=grace, idle=idle)
        self.process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def client(self) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, headers={"x-api-key": KEY}, timeout=20, verify=False)

    def finish(self) -> str:
        try:
            _, log = self.process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_requests_finish(tmp_path: Path, number: signal.Signals) -> None:
    daemon = Daemon(tmp_path)
    with daemon.client() as client:
        sandbox = client.post("/v1/sandboxes", json={}).json()["id"]
        daemon_pid = daemon.process.pid

        async def ask() -> httpx2.Response:
            async with httpx2.AsyncClient(headers={"x-api-key": KEY}, verify=False, timeout=20) as other:
                request = other.post(f"{daemon.url}/v1/sandboxes/{sandbox}/exec", json={"cmd": "sleep 1"})
                task = asyncio.ensure_future(request)
                await asyncio.sleep(0.4)
                os.kill(daemon_pid, number)
                await asyncio.sleep(0.3)
                with pytest.raises(httpx2.ConnectError):
                    await other.get(f"{daemon.url}/healthz")
                return await task

        assert asyncio.run(ask()).json()["exit_code"] == 0
    log = daemon.finish()
    assert daemon.process.returncode == 0, log
    assert '"stopping"' in log
    assert KEY not in log
    assert "Traceback" not in log


def test_a_second_signal_hastens(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, grace=60)

    async def ask() -> httpx2.Response:
        async with httpx2.AsyncClient(headers={"x-api-key": KEY}, verify=False, timeout=20) as client:
            sandbox = (await client.post(f"{daemon.url}/v1/sandboxes", json={})).json()["id"]
            request = client.post(f"{daemon.url}/v1/sandboxes/{sandbox}/exec", json={"cmd": "sleep 50"})
            task = asyncio.ensure_future(request)
            await asyncio.sleep(0.3)
            for _ in range(2):
                os.kill(daemon.process.pid, signal.SIGTERM)
                await asyncio.sleep(0.3)
            return await task

    started = time.monotonic()
    answer = asyncio.run(ask())
    log = daemon.finish()
    assert time.monotonic() - started < 10
    assert (answer.status_code, answer.json()["error"]) == (503, "the server is shutting down")
    assert "retry-after" not in answer.headers
    assert daemon.process.returncode == 0, log
    assert "Traceback" not in log


def test_an_idle_daemon_goes_away_but_not_while_it_has_sandboxes(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, idle=0.6)
    with daemon.client() as client:
        sandbox = client.post("/v1/sandboxes", json={}).json()["id"]
        time.sleep(1.2)
        assert client.delete(f"/v1/sandboxes/{sandbox}").status_code == 204
    log = daemon.finish()
    assert daemon.process.returncode == 0, log
    assert '"reason":"idle"' in log
