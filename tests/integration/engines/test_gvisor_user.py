"""An ordinary user can run the engine, in a user namespace of its own, and is told which limits don't hold."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

import cellbox

_UID = 54321  # nobody's

_DAEMON = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from cellbox.engines.gvisor import attachments
from cellbox.engines.gvisor.engine import GvisorEngine
from cellbox.engines.base import Attachment
from cellbox.engines.gvisor.user_namespace import enter_user_namespace

GvisorEngine.prepare_process()
assert not enter_user_namespace()

async def main():
    engine = GvisorEngine(Path(sys.argv[2]), runsc=Path(sys.argv[3]))
    await engine.start()  # boots, freezes, saves and restores a machine
    probe = await engine.probe()
    assert probe.usable and probe.enforced["freeze"] and not probe.enforced["memory"] and probe.problems
    assert await engine.sweep() == []
    attachments.make_place(engine.layout, "5")
    attachments.attach(engine.layout, "5", [Attachment(name="ro", source=Path(sys.argv[2]), read_only=True)])
    try:
        (engine.layout.mounts / "5/ro/new").touch()
    except OSError:
        attachments.remove(engine.layout, "5")
    await engine.sweep()
    assert not (engine.layout.mounts / "5").exists()
    await engine.aclose()
    print("all well")

asyncio.run(main())
"""


@pytest.fixture
def place(runsc: Path) -> Generator[Path]:
    """A directory that another user can read, with the binary and this program in it: a checkout may be below /root."""
    directory = Path(tempfile.mkdtemp(prefix="cbu-"))
    directory.chmod(0o755)
    shutil.copy(runsc, directory / "runsc")
    (directory / "lib").mkdir()
    shutil.copytree(next(iter(cellbox.__path__)), directory / "lib/cellbox")
    shutil.copytree(next(iter(msgspec.__path__)), directory / "lib/msgspec")
    (directory / "state").mkdir()
    os.chown(directory / "state", _UID, _UID)
    yield directory
    shutil.rmtree(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become an ordinary user")
async def test_an_ordinary_user_can_run_machines(place: Path) -> None:
    python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin")
    if python is None:
        pytest.skip("no Python of this version that other users can run")
    process = await asyncio.create_subprocess_exec(
        python,
        *("-c", _DAEMON, str(place / "lib"), str(place / "state"), str(place / "runsc")),
        user=_UID,
        group=_UID,
        extra_groups=[],
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert output.decode().strip().endswith("all well"), output.decode()
    assert process.returncode == 0
