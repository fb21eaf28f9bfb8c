"""What a daemon that died leaves behind is removed by the next one, and nothing else is touched."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from cellbox.engines.gvisor.cgroups import Hierarchies
from cellbox.engines.gvisor.engine import GvisorEngine
from cellbox.engines.gvisor.processes import all_pids, read_arguments
from cellbox.errors import EngineUnavailableError
from cellbox.testing.engine_conformance import running, shell_spec

_DAEMON = """
import asyncio, os, signal, sys
from pathlib import Path
from cellbox.engines.gvisor.engine import GvisorEngine
from cellbox.testing.engine_conformance import Guest, shell_spec

async def main(state, runsc, rootfs):
    engine = GvisorEngine(Path(state), runsc=Path(runsc))
    await engine.start()
    for argv in (("/bin/sh", "-c", "echo ready; cat"), ("/bin/sh", "-c", "echo ready; trap '' HUP; sleep 1000")):
        guest = Guest(await engine.boot(shell_spec(Path(rootfs), argv=argv)))
        await guest.read_line()
    starting = asyncio.ensure_future(engine.boot(shell_spec(Path(rootfs))))
    await asyncio.sleep(0.03)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_sweep_removes_what_a_killed_daemon_left_and_nothing_else(
    state: Path, runsc: Path, rootfs: Path, tmp_path: Path
) -> None:
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(_DAEMON), str(state), str(runsc), str(rootfs)
    )
    assert await asyncio.wait_for(daemon.wait(), 60) == -signal.SIGKILL
    decoy = _decoy(tmp_path, state)
    place = Hierarchies.discover().places()[0]
    stranger = place / f"cellbox-not-ours-{os.getpid()}"
    stranger.mkdir()
    engine = GvisorEngine(state, runsc=runsc)
    try:
        await engine.start()
        swept = await engine.sweep()
        assert 2 <= len(swept) <= 3  # the third was being started when the daemon died
        assert await engine.sweep() == []
        assert decoy.poll() is None
        assert stranger.exists()
        async with running(engine, shell_spec(rootfs)):
            pass
    finally:
        await engine.aclose()
        decoy.kill()
        decoy.wait()
        stranger.rmdir()


def _decoy(directory: Path, state: Path) -> subprocess.Popen[bytes]:
    """A process that calls itself runsc-sandbox, with a root much like ours."""
    return subprocess.Popen(
        ["runsc-sandbox", "-c", "import time; time.sleep(60)", f"--root={state}/r-other", "boot", "0123456789abcdef"],
        executable=sys.executable,
    )


async def test_a_guest_dies_with_its_daemon(
    state: Path, runsc: Path, rootfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLBOX_SHELLS", "0")  # a shell has no guest that could notice
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(_DAEMON), str(state), str(runsc), str(rootfs)
    )
    await asyncio.wait_for(daemon.wait(), 60)
    # The first guest read its stdin and saw the end of it; the second is deaf and is left to the sweep.
    end = time.monotonic() + 10
    while len(_sentries(state)) > 2 and time.monotonic() < end:
        await asyncio.sleep(0.05)
    assert len(_sentries(state)) <= 2
    engine = GvisorEngine(state, runsc=runsc)
    await engine.start()
    await engine.sweep()
    await engine.aclose()
    assert _sentries(state) == []


def _sentries(state: Path) -> list[int]:
    return [pid for pid in all_pids() if f"--root={state}/r" in (words := read_arguments(pid)) and "boot" in words]


async def test_one_installation_has_one_driver(engine: GvisorEngine, runsc: Path) -> None:
    with pytest.raises(EngineUnavailableError, match="another process"):
        await GvisorEngine(engine.layout.state, runsc=runsc).start()


async def test_other_children_of_the_daemon_keep_their_exit_status(engine: GvisorEngine, rootfs: Path) -> None:
    other = subprocess.Popen(["sh", "-c", "exit 42"])
    async with running(engine, shell_spec(rootfs)):
        pass
    await engine.sweep()
    assert other.wait() == 42


async def test_a_killed_sentry_is_reported_and_cleaned_up(engine: GvisorEngine, rootfs: Path) -> None:
    async with running(engine, shell_spec(rootfs)) as guest:
        sentry = guest.machine._traces.sentry
        assert sentry is not None
        os.kill(sentry.pid, signal.SIGKILL)
        end = await asyncio.wait_for(guest.machine.wait(), 10)
        assert end.cause == "engine_crashed"
        assert "Signal 9" in end.detail
    assert await engine.sweep() == []
