"""A real engine and a tiny root filesystem; both fixtures check that nothing is left behind."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator, Set
from pathlib import Path

import pytest

from cellbox.engines.gvisor.cgroups import CgroupTree
from cellbox.engines.gvisor.engine import GvisorEngine
from cellbox.engines.gvisor.install import ensure_runsc
from cellbox.engines.gvisor.launch import Launcher
from cellbox.engines.gvisor.layout import Layout
from cellbox.engines.gvisor.processes import all_pids, children, read_arguments, read_stat
from cellbox.engines.mounts import mounted_below

pytest.register_assert_rewrite("cellbox.testing.engine_conformance")

_PROGRAMS = ("sh", "cat", "ls", "sleep", "head")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
async def runsc() -> Path:
    """The binary named by CELLBOX_RUNSC, on PATH, or fetched once into the user's cache."""
    if named := os.environ.get("CELLBOX_RUNSC"):
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "cellbox-tests")
    launcher = Launcher(width=1)
    try:
        return (await ensure_runsc(launcher, cache)).path
    finally:
        launcher.close()


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few of the host's own programs with the libraries they need."""
    root = tmp_path_factory.mktemp("rootfs")
    for name in ("bin", "proc", "sys", "dev", "tmp"):
        (root / name).mkdir()
    for name in _PROGRAMS:
        source = shutil.which(name)
        assert source, f"this machine has no {name}"
        shutil.copy(source, root / "bin" / name)
        for word in subprocess.run(["ldd", source], capture_output=True, text=True, check=True).stdout.split():
            if word.startswith("/"):
                target = root / word.lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, target)
    root.chmod(0o755)
    return root


@pytest.fixture
def state() -> Generator[Path]:
    """An installation's directory of one test: a short path, and nothing of it may be left alive."""
    directory = Path(tempfile.mkdtemp(prefix="cbx-"))
    older = set(all_pids())
    yield directory
    try:
        assert_nothing_left(Layout(directory), older)
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
async def shared_engine(runsc: Path) -> AsyncGenerator[GvisorEngine]:
    """One engine for all tests of the contract: a probe of its own for each would take half of their time."""
    directory = Path(tempfile.mkdtemp(prefix="cbx-"))
    older = set(all_pids())
    engine = GvisorEngine(directory, runsc=runsc, shells=0)  # so that a test can see that nothing is left of its own
    await engine.start()
    yield engine
    await engine.aclose()
    try:
        assert_nothing_left(Layout(directory), older)
        assert CgroupTree(Layout(directory).cgroup_prefix).is_gone()
    finally:
        shutil.rmtree(directory)


@pytest.fixture
async def engine(shared_engine: GvisorEngine) -> AsyncGenerator[GvisorEngine]:
    older = set(all_pids())
    yield shared_engine
    assert_nothing_left(shared_engine.layout, older)


def assert_nothing_left(layout: Layout, older: Set[int]) -> None:
    """No process, zombie, cgroup, mount or file of any machine.

    A zombie does not tell whose it is, and orphans of a daemon that another test killed come to this process too:
    `older` are the processes there were before.
    """
    ours = [pid for pid in all_pids() if any(str(layout.state) in part for part in read_arguments(pid))]
    assert ours == []
    assert [
        stat
        for pid in children(os.getpid())
        if pid not in older and (stat := read_stat(pid)) and stat.state == "Z" and stat.command == "exe"
    ] == []
    assert CgroupTree(layout.cgroup_prefix).machine_ids() == set()
    assert [place for place in mounted_below(layout.state) if place != layout.mounts] == []  # the engine's own
    if layout.root.exists():
        assert layout.machine_ids() == set()
        assert list(layout.root.iterdir()) == []
