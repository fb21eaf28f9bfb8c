"""Machines that were made before they were asked for are as right as any other, and none of them stays behind."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from cellbox.engines.base import Engine, EngineFault
from cellbox.engines.gvisor.cgroups import Cgroup
from cellbox.engines.gvisor.engine import GvisorEngine
from cellbox.engines.gvisor.machine import GvisorMachine
from cellbox.engines.gvisor.shells import Shells
from cellbox.engines.gvisor.spec import memory_limit_bytes
from cellbox.engines.gvisor.starts import Shell
from cellbox.testing import engine_conformance
from cellbox.testing.engine_conformance import EngineConformance, Guest, running, shell_spec


@pytest.fixture(scope="module")
async def shelled(runsc: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[GvisorEngine]:
    engine = GvisorEngine(tmp_path_factory.mktemp("shells"), runsc=runsc, shells=2)
    await engine.start()
    if not (await engine.probe()).enforced["freeze"]:
        pytest.skip("this host can't freeze, so no shells are kept")
    yield engine
    await engine.aclose()


@pytest.fixture
async def engine(shelled: GvisorEngine) -> AsyncGenerator[GvisorEngine]:
    yield shelled
    assert await shelled.sweep() == []


class TestGvisorWithShells(EngineConformance):
    async def test_descriptors_of_the_daemon_stay_flat(self, engine: Engine, rootfs: Path) -> None:
        assert isinstance(engine, GvisorEngine)
        await _full(engine, rootfs)
        before = len(engine_conformance.open_descriptors())
        for _ in range(3):
            await _full(engine, rootfs)
        await engine_conformance.until(lambda: len(engine_conformance.open_descriptors()) <= before)


def _shells(engine: GvisorEngine) -> Shells:
    shells = engine._started().shells
    assert shells is not None
    return shells


def _ready(engine: GvisorEngine) -> list[Shell]:
    return _shells(engine)._ready


async def _until_ready(engine: GvisorEngine, rootfs: Path, *memory_mb: int) -> None:
    """Wait for shells of these sizes and no others; an earlier test's may still be there for a while."""
    wanted = sorted((rootfs, size) for size in memory_mb)
    async with asyncio.timeout(20):
        while sorted((shell.spec.rootfs, shell.spec.memory_mb) for shell in _ready(engine)) != wanted:
            await asyncio.sleep(0.02)


async def _full(engine: GvisorEngine, rootfs: Path) -> None:
    """Have one machine twice, and then two shells for more of the kind."""
    for _ in range(2):
        async with running(engine, shell_spec(rootfs)):
            pass
    await _until_ready(engine, rootfs, 128, 128)


def _is_in_shell(guest: Guest) -> bool:
    assert isinstance(guest.machine, GvisorMachine)
    return guest.machine._traces.machine_id.startswith("5e11-")


def _kill_sentry(shell: Shell) -> None:
    assert shell.traces.sentry is not None
    os.kill(shell.traces.sentry.pid, signal.SIGKILL)


def _is_fit(_: Shell) -> bool:
    return True


async def test_starts_take_shells_and_new_ones_are_made(engine: GvisorEngine, rootfs: Path, tmp_path: Path) -> None:
    await _full(engine, rootfs)
    async with running(engine, shell_spec(rootfs)) as guest:
        assert _is_in_shell(guest)
        await _until_ready(engine, rootfs, 128, 128)
        await guest.machine.checkpoint(tmp_path, leave_running=True)
        async with running(engine, shell_spec(rootfs), tmp_path) as clone:
            assert _is_in_shell(clone)
            assert await clone.ask("echo $GREETING") == "hello"


async def test_each_size_gets_a_shell_with_its_own_limits(engine: GvisorEngine, rootfs: Path) -> None:
    specs = [shell_spec(rootfs, memory_mb=96, disk_mb=16), shell_spec(rootfs, memory_mb=160, cpu=2, tasks=32)]
    for spec in specs:
        async with running(engine, spec):
            pass
    await _until_ready(engine, rootfs, 96, 160)
    for spec in specs:
        async with running(engine, spec) as guest:
            assert _is_in_shell(guest)
            assert (await guest.ask("head -n 1 /proc/meminfo")).split()[1] == str(spec.memory_mb * 1024)
            count = "n=0; while read -r k v; do case $k in processor) n=$((n+1));; esac; done </proc/cpuinfo; echo $n"
            assert await guest.ask(count) == str(spec.cpu)
            assert isinstance(guest.machine, GvisorMachine)
            cgroup = guest.machine._traces.cgroup
            assert cgroup is not None
            read = {name: _limit(cgroup, *files) for name, files in _LIMIT_FILES.items()}
            assert read["memory"] == memory_limit_bytes(spec)
            assert read["cpu"] == spec.cpu * 100_000


_LIMIT_FILES = {
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "cpu": ("cpu.cfs_quota_us", "cpu.max"),
}


def _limit(cgroup: Cgroup, v1: str, v2: str) -> int:
    directory = cgroup._directory(v1.partition(".")[0])
    assert directory is not None
    file = directory / v1 if (directory / v1).exists() else directory / v2
    return int(file.read_text().split()[0])


async def test_a_waiting_shell_uses_no_processor(engine: GvisorEngine, rootfs: Path) -> None:
    await _full(engine, rootfs)
    cgroups = [shell.traces.cgroup for shell in _ready(engine)]
    before = [cgroup.cpu_seconds() for cgroup in cgroups if cgroup]
    await asyncio.sleep(0.5)
    assert [cgroup.cpu_seconds() for cgroup in cgroups if cgroup] == before


async def test_a_dead_shell_is_not_handed_out(engine: GvisorEngine, rootfs: Path) -> None:
    await _full(engine, rootfs)
    for shell in list(_ready(engine)):
        _kill_sentry(shell)
    async with running(engine, shell_spec(rootfs)) as guest:
        assert not _is_in_shell(guest)


async def test_a_shell_that_dies_in_the_hand_costs_nobody_the_machine(
    engine: GvisorEngine, rootfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _full(engine, rootfs)
    monkeypatch.setattr(Shell, "is_fit", _is_fit)
    for shell in list(_ready(engine)):
        _kill_sentry(shell)
    spec = shell_spec(rootfs)
    async with running(engine, spec) as guest:
        assert guest.machine.machine_id == spec.machine_id
        assert not _is_in_shell(guest)


async def test_a_template_that_was_replaced_is_not_shown(engine: GvisorEngine, rootfs: Path, tmp_path: Path) -> None:
    template = tmp_path / "template"
    shutil.copytree(rootfs, template)
    await _full(engine, template)
    template.rename(tmp_path / "old")
    shutil.copytree(rootfs, template)
    (template / "new").touch()
    async with running(engine, shell_spec(template)) as guest:
        assert await guest.ask("[ -e /new ] && echo new || echo old") == "new"
        assert not _is_in_shell(guest)


async def test_shells_of_a_template_that_is_gone_are_removed(
    engine: GvisorEngine, rootfs: Path, tmp_path: Path
) -> None:
    template = tmp_path / "template"
    shutil.copytree(rootfs, template)
    await _full(engine, template)
    shutil.rmtree(template)
    _shells(engine)._wake.set()  # instead of waiting for the next look
    await _until_ready(engine, template)


async def test_more_starts_than_shells(engine: GvisorEngine, rootfs: Path) -> None:
    await _full(engine, rootfs)
    machines = await asyncio.gather(*(engine.boot(shell_spec(rootfs)) for _ in range(5)))
    guests = [Guest(machine) for machine in machines]
    try:
        assert [await guest.read_line() for guest in guests] == ["ready"] * 5
        assert sum(_is_in_shell(guest) for guest in guests) == 2
    finally:
        await asyncio.gather(*(guest.end() for guest in guests))


async def test_a_start_waits_for_the_shell_in_the_making(engine: GvisorEngine, rootfs: Path) -> None:
    shells = _shells(engine)
    for cancelled in (False, True):
        await _full(engine, rootfs)
        async with running(engine, shell_spec(rootfs)), running(engine, shell_spec(rootfs)):
            async with asyncio.timeout(20):
                while shells._making is None:
                    await asyncio.sleep(0.001)
            start = asyncio.ensure_future(engine.boot(shell_spec(rootfs)))
            if cancelled:
                await asyncio.sleep(0.01)
                start.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await start
            else:
                guest = Guest(await start)
                assert _is_in_shell(guest)
                await guest.end()


async def test_an_id_in_use_is_refused_and_left_alone(engine: GvisorEngine, rootfs: Path) -> None:
    await _full(engine, rootfs)
    spec = shell_spec(rootfs)
    (engine.layout.bundle(spec.machine_id)).mkdir()  # as if an earlier process had left it
    with pytest.raises(EngineFault, match="exists already"):
        await engine.boot(spec)
    assert await engine.sweep() == [spec.machine_id]


async def test_templates_being_built_get_none(engine: GvisorEngine, rootfs: Path) -> None:
    await _full(engine, rootfs)
    async with running(engine, shell_spec(rootfs, writable_root=True)) as guest:
        assert not _is_in_shell(guest)
    assert all(not shell.spec.writable_root for shell in _ready(engine))
