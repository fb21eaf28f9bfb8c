"""How many shells there are is the operator's choice, and none outlives its engine."""

import asyncio
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from cellbox.engines.gvisor.engine import GvisorEngine
from cellbox.errors import ConfigurationError
from cellbox.testing.engine_conformance import running, shell_spec


async def test_closing_while_one_is_made_leaves_nothing(state: Path, runsc: Path, rootfs: Path) -> None:
    for delay in (0.0, 0.03, 0.06):
        engine = GvisorEngine(state, runsc=runsc, shells=2)
        await engine.start()
        async with running(engine, shell_spec(rootfs)):
            async with asyncio.timeout(20):
                shells = engine._started().shells
                while shells is not None and shells._making is None:
                    await asyncio.sleep(0.001)
            await asyncio.sleep(delay)
        await engine.aclose()


@pytest.mark.parametrize("value", ["0", "3", ""])
async def test_the_environment_says_how_many(
    state: Path, runsc: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("CELLBOX_SHELLS", value)
    engine = GvisorEngine(state, runsc=runsc)
    await engine.start()
    shells = engine._started().shells
    assert (0 if shells is None else shells._count) == int(value or 2)
    await engine.aclose()


@pytest.mark.parametrize("value", ["-1", "many", "1.5"])
def test_a_senseless_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CELLBOX_SHELLS", value)
    with pytest.raises(ConfigurationError, match="CELLBOX_SHELLS"):
        GvisorEngine(tmp_path)


_DAEMON = """
import asyncio, os, signal, sys
from pathlib import Path
from cellbox.engines.gvisor.engine import GvisorEngine
from cellbox.testing.engine_conformance import Guest, shell_spec

async def main(state, runsc, rootfs):
    engine = GvisorEngine(Path(state), runsc=Path(runsc), shells=2)
    await engine.start()
    deaf = ("/bin/sh", "-c", "echo ready; trap '' HUP; sleep 1000")
    for machine_id in ("ab-1", "ab-2"):
        await Guest(await engine.boot(shell_spec(Path(rootfs), machine_id=machine_id, argv=deaf))).read_line()
        while engine._started().shells.ready < 2:
            await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_killed_daemon_leaves_nothing_after_a_sweep(state: Path, runsc: Path, rootfs: Path) -> None:
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(_DAEMON), str(state), str(runsc), str(rootfs)
    )
    assert await asyncio.wait_for(daemon.wait(), 60) == -signal.SIGKILL
    engine = GvisorEngine(state, runsc=runsc)
    await engine.start()
    kept = await engine.sweep(keep=["ab-2"])
    assert "ab-1" in kept
    assert "ab-2" not in kept
    assert len(kept) == 3  # and the two shells
    assert await engine.sweep() == ["ab-2"]
    await engine.aclose()
