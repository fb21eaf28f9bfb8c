"""The limits are real: measured on the host while a guest tries to pass them."""

import asyncio
import time
from pathlib import Path

import pytest

from cellbox.engines.gvisor.engine import GvisorEngine
from cellbox.testing.engine_conformance import running, shell_spec

_SLEEPERS = "i=0; while [ $i -lt 40 ]; do sleep 100 & i=$((i+1)); done; echo started"


@pytest.fixture(autouse=True)
async def _needs_cgroups(engine: GvisorEngine) -> None:
    if not (await engine.probe()).enforced["memory"]:
        pytest.skip("this host can't enforce limits")


async def test_cpu_is_limited_to_the_quota(engine: GvisorEngine, rootfs: Path) -> None:
    async with running(engine, shell_spec(rootfs, cpu=0.5)) as guest:
        await guest.ask("(while :; do :; done) & (while :; do :; done) & echo busy")
        before, started = (await guest.machine.usage()).cpu_seconds, time.monotonic()
        await asyncio.sleep(2)
        used = (await guest.machine.usage()).cpu_seconds - before
        assert used <= 0.5 * (time.monotonic() - started) * 1.05 + 0.05


async def test_every_process_of_a_machine_is_under_its_limits(engine: GvisorEngine, rootfs: Path) -> None:
    async with running(engine, shell_spec(rootfs)) as guest:
        await guest.ask(_SLEEPERS)
        cgroup = guest.machine._traces.cgroup
        assert cgroup is not None
        assert len(cgroup.pids()) > 40
        assert all(cgroup.missing(pid) == [] for pid in cgroup.pids())


async def test_forty_processes_fit_into_the_overhead_allowed_for(engine: GvisorEngine, rootfs: Path) -> None:
    async with running(engine, shell_spec(rootfs, tasks=64)) as guest:
        await guest.ask(_SLEEPERS)
        usage = await guest.machine.usage()
        assert usage.memory_bytes < (128 + 32) << 20
        assert usage.processes <= 2 * 64 + 256
