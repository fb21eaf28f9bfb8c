"""Code contexts: isolated, counted, gone when closed, ready when they are there."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import cellbox
from cellbox import errors

GRACE_SECONDS = 3.0


@pytest.fixture(scope="module")
def context(sandbox: cellbox.Sandbox) -> Iterator[cellbox.CodeContext]:
    with sandbox.create_code_context() as shared:
        yield shared


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.02)


def wait_until_busy(context: cellbox.CodeContext, sandbox: cellbox.Sandbox) -> None:
    wait_until(lambda: any(one.id == context.id and one.info.is_busy for one in sandbox.contexts()))


def test_contexts_come_and_go_without_a_trace(sandbox: cellbox.Sandbox) -> None:
    before = int(sandbox.exec("ls -d /proc/[0-9]* | wc -l").stdout)
    for _ in range(20):
        with sandbox.create_code_context() as one:
            assert one.run_code("value").error is not None
            assert one.run_code("value = 2\nvalue").text == "2"
    # One kernel more than at first may be waiting: the next context's.
    wait_until(lambda: int(sandbox.exec("ls -d /proc/[0-9]* | wc -l").stdout) <= before + 1)


def test_more_contexts_than_memory_holds_are_an_explicit_error(new_sandbox: Callable[..., cellbox.Sandbox]) -> None:
    box = new_sandbox(memory_mb=512)
    made: list[cellbox.CodeContext] = []
    with pytest.raises(errors.QuotaExceededError, match="needs 64 MB of memory"):
        for n in range(32):
            made.append(box.create_code_context())
            made[-1].run_code(f"mine = {n}")
    assert len(made) == len(box.contexts()) >= 3
    assert [one.run_code("mine").text for one in made] == [str(n) for n in range(len(made))], "nobody paid for it"
    made[0].close()
    made[1].close()
    assert box.create_code_context().run_code("1").text == "1"


def test_cwd_and_env_of_a_context_and_of_a_cell(sandbox: cellbox.Sandbox) -> None:
    sandbox.exec("mkdir -p '/tmp/a b/ü'")
    with sandbox.create_code_context(cwd="/tmp/a b/ü", env={"A": "1"}) as one:
        look = "import os\nos.getcwd(), os.environ.get('A'), os.environ.get('B')"
        assert one.run_code(look).text == "('/tmp/a b/ü', '1', None)"
        for n in range(10):
            assert one.run_code(look, env={"A": str(n), "B": "b"}).text == f"('/tmp/a b/ü', '{n}', 'b')"
            assert one.run_code(look).text == "('/tmp/a b/ü', '1', None)"
    with pytest.raises(errors.InvalidRequestError, match="/nope"):
        sandbox.create_code_context(cwd="/nope")


def test_a_sandbox_is_ready_when_create_returns(new_sandbox: Callable[..., cellbox.Sandbox]) -> None:
    with ThreadPoolExecutor(4) as pool:
        boxes = list(pool.map(lambda _: new_sandbox(), range(4)))
        assert [done.text for done in pool.map(lambda box: box.run_code("6 * 7"), boxes)] == ["42"] * 4


def test_a_cell_and_the_big_imports_are_quick(context: cellbox.CodeContext) -> None:
    times: list[float] = []
    for _ in range(100):
        started = time.monotonic()
        assert context.run_code("1 + 1").text == "2"
        times.append(time.monotonic() - started)
    assert statistics.median(times) < 0.02
    imported = context.run_code("import matplotlib.pyplot, numpy, pandas")
    assert imported.error is None
    assert imported.duration_ms < 1500


def test_many_plots_in_many_contexts_never_hang(sandbox: cellbox.Sandbox) -> None:
    code = "import pandas as pd, matplotlib.pyplot as plt\npd.DataFrame({'a': [1, 2]}).plot()\nplt.show()"

    def plot(_: int) -> int:
        with sandbox.create_code_context() as one:
            return sum(len(one.run_code(code, timeout_seconds=60).results) for _ in range(5))

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(plot, range(6))) == [5] * 6


def test_threads_of_one_context_and_a_closed_one(sandbox: cellbox.Sandbox) -> None:
    one = sandbox.create_code_context()
    with ThreadPoolExecutor() as pool:
        running = pool.submit(one.run_code, "while True: pass", timeout_seconds=60)
        wait_until_busy(one, sandbox)
        one.close()
        assert running.result(GRACE_SECONDS).outcome == "killed"
    with pytest.raises(errors.ContextNotFoundError):
        one.run_code("1")
    assert threading.active_count() < 50
