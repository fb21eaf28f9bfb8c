"""The pool with real machines: each is handed out once, alive and right, and every other create goes its usual way."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, cast

import pytest

from cellbox import errors
from cellbox.control import host
from cellbox.control.control import Control
from cellbox.control.pool import Pool
from cellbox.control.sandbox import LiveSandbox
from cellbox.control.settings import Settings
from cellbox.engines.gvisor.machine import GvisorMachine
from cellbox.protocol.commands import RunCommand
from cellbox.protocol.contexts import CreateContext, RunCode
from cellbox.protocol.pool import PoolSize
from cellbox.protocol.sandboxes import CreateSandbox

from ...conftest import TEMPLATES_DIR

OWNER = "someone"
STATE = (
    "import os, sys\n"
    "(sorted(globals()), In[:-1], dict(Out), _, __, _i, sorted(vars()), get_ipython().execution_count,"
    " len(sys.modules), sorted(os.listdir('/proc/self/fd'))[:3])"
)


@pytest.fixture(scope="module")
async def control(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Control]:
    settings = Settings(
        data_dir=tmp_path_factory.mktemp("pool"), templates_dir=TEMPLATES_DIR, max_sandboxes_per_owner=9
    )
    async with Control(settings) as control:
        if not (await control.engine.probe()).enforced["freeze"]:
            pytest.skip("this host can't freeze machines")
        yield control
        control.sandboxes.pool.resize({})
        await until(control, 0)


@pytest.fixture
async def pool(control: Control) -> AsyncGenerator[Pool]:
    yield control.sandboxes.pool
    for sandbox in control.sandboxes.list(OWNER):
        await control.sandboxes.kill(OWNER, sandbox.id)


async def until(control: Control, ready: int) -> None:
    async with asyncio.timeout(60):
        while control.sandboxes.pool.ready != ready:
            await asyncio.sleep(0.01)


async def fill(control: Control, template: str, least: int, most: int | None = None) -> None:
    """Make exactly so many of a template ready, new ones."""
    pool = control.sandboxes.pool
    pool.resize({})
    await until(control, 0)
    pool.counts.clear()
    pool.resize({template: PoolSize(min=least, max=least if most is None else most)})
    await until(control, least)


async def create(control: Control, template: str = "base", **wishes: Any) -> LiveSandbox:
    return await control.sandboxes.create(OWNER, CreateSandbox(template=template, **wishes))


async def said(sandbox: LiveSandbox, command: str) -> str:
    return (await sandbox.commands.run(RunCommand(cmd=command))).stdout


def machines(pool: Pool) -> list[GvisorMachine]:
    return [cast("GvisorMachine", one.prepared.connection[0]) for one in pool._ready]


def signal_all(machine: GvisorMachine, number: int) -> None:
    assert machine._traces.cgroup is not None
    for pid in machine._traces.cgroup.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, number)


async def test_what_is_handed_out_is_what_was_asked_for(control: Control, pool: Pool) -> None:
    await fill(control, "base", 1)
    assert control.sandboxes.list(OWNER) == []  # nobody's
    sandbox = await create(control, env={"WHOSE": "mine"}, metadata={"task": "t"}, ttl_seconds=77)
    info = sandbox.info()
    assert info.boot_mode == "pool"
    assert pool.counts["hits"] == 1
    assert (info.metadata, info.ttl_seconds) == ({"task": "t"}, 77)
    assert 70 < (info.expires_at or info.created_at).timestamp() - info.created_at.timestamp() <= 78
    assert await said(sandbox, "echo $WHOSE; hostname") == f"mine\nsandbox-{sandbox.id[:8]}\n"
    assert control.sandboxes.list(OWNER) == [sandbox]


async def test_nobody_shares_one_when_many_ask_at_once(control: Control, pool: Pool) -> None:
    await fill(control, "base", 2)
    made = await asyncio.gather(*(create(control) for _ in range(5)))
    assert len({sandbox.id for sandbox in made}) == 5
    assert [sandbox.info().boot_mode for sandbox in made].count("pool") == pool.counts["hits"] == 2, pool.counts
    names = await asyncio.gather(*(said(sandbox, "hostname; cat /etc/machine-id") for sandbox in made))
    assert len(set(names)) == 5


async def test_the_dead_and_the_silent_are_passed_over(
    control: Control, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(control, "base", 2)
    monkeypatch.setattr("cellbox.control.pool._HAND_OVER_SECONDS", 0.5)
    dead, silent = machines(pool)
    signal_all(dead, signal.SIGKILL)
    signal_all(silent, signal.SIGSTOP)
    sandbox = await create(control)
    assert await said(sandbox, "echo alive") == "alive\n"
    assert sandbox.id not in {dead.machine_id, silent.machine_id}
    await asyncio.gather(dead.wait(), silent.wait())


async def test_another_size_is_restored_and_keeps_its_own_limits(control: Control, pool: Pool) -> None:
    await fill(control, "base", 1)
    sandbox = await create(control, memory_mb=300)
    assert sandbox.info().boot_mode == "snapshot"
    assert (pool.ready, pool.counts["hits"], pool.counts["misses"]) == (1, 0, 1)


async def test_ready_ones_use_no_processor(control: Control, pool: Pool) -> None:
    await fill(control, "base", 1)
    (machine,) = machines(pool)
    before = (await machine.usage()).cpu_seconds
    await said(await create(control, memory_mb=300), "true")
    assert (await machine.usage()).cpu_seconds == before


async def test_demand_makes_one_ready(control: Control, pool: Pool) -> None:
    await fill(control, "base", 0, 1)
    first = await create(control, memory_mb=300)
    await until(control, 1)
    second = await create(control, memory_mb=300)
    assert [first.info().boot_mode, second.info().boot_mode] == ["snapshot", "pool"]


async def test_memory_goes_back_when_the_host_runs_short(
    control: Control, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(control, "base", 2)
    total, _ = host.memory()
    monkeypatch.setattr(host, "memory", lambda: (total, host.reserve_bytes(total) - 1))
    ready = await create(control)  # takes no memory that was not taken already
    assert ready.info().boot_mode == "pool"
    with pytest.raises(errors.CapacityError):
        await create(control, memory_mb=300)
    await until(control, 0)
    assert pool.counts["given_back"] == 1
    async with asyncio.timeout(20):
        while (await pool.status()).waits_for != "memory":
            await asyncio.sleep(0.01)


async def test_an_outdated_template_is_not_handed_out(control: Control, pool: Pool) -> None:
    await fill(control, "base", 1)
    (ready,) = pool._ready
    ready.rootfs = (0, 0)  # as if another one had been put in its place
    sandbox = await create(control)
    assert sandbox.info().boot_mode == "snapshot"


async def test_a_rehearsed_kernel_is_like_a_fresh_one(control: Control, pool: Pool) -> None:
    await fill(control, "code-interpreter", 1)
    answers = [await first_cell(control, code) for code in (STATE, STATE)]
    assert [mode for mode, _ in answers] == ["pool", "snapshot"]
    assert answers[0][1] == answers[1][1]


async def first_cell(control: Control, code: str) -> tuple[str, Any]:
    # The second one is of another size, so that it is no ready one.
    wishes = {} if control.sandboxes.pool.ready else {"memory_mb": 900}
    sandbox = await create(control, "code-interpreter", env={"WHOSE": "mine"}, **wishes)
    context = await sandbox.contexts.create(CreateContext())
    done = await sandbox.contexts.run(context.id, RunCode(code=code))
    assert done.error is None
    again = await sandbox.contexts.run(context.id, RunCode(code="import os; os.environ['WHOSE'], _i1 == _i"))
    assert again.results[0]["text/plain"] == "('mine', True)", again.error
    return sandbox.info().boot_mode, (done.results, done.execution_count, done.stdout, done.late_stdout_bytes)
