"""Cells that people and models write, and what goes wrong with them elsewhere: every one has a defined outcome."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

import cellbox
from cellbox.protocol.commands import StderrChunk, StdoutChunk
from cellbox.protocol.contexts import CellDisplay, CellEnded

from .conftest import Daemon

GRACE_SECONDS = 3.0
"""An interrupt takes at most two steps of a second each before the kernel is killed."""


@pytest.fixture(scope="module")
def context(sandbox: cellbox.Sandbox) -> Iterator[cellbox.CodeContext]:
    """A kernel that every test may run cells in, as long as it lives on."""
    with sandbox.create_code_context() as shared:
        yield shared


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.02)


def wait_until_busy(context: cellbox.CodeContext, sandbox: cellbox.Sandbox) -> None:
    wait_until(lambda: any(one.id == context.id and one.info.is_busy for one in sandbox.contexts()))


# ------------------------------------------------------------------------------------------------ a kernel that dies


@pytest.mark.parametrize(
    ("code", "reason", "exit_code", "cause"),
    [
        ("os.kill(os.getpid(), 9)", "signal", 137, "SIGKILL"),
        ("ctypes.string_at(0)", "signal", 139, "SIGSEGV"),
        ("os.abort()", "signal", 134, "SIGABRT"),
        ("os._exit(3)", "exit", 3, "exit code 3"),
        ("os.close(0); os.closerange(3, 999); time.sleep(60)", "signal", 137, "SIGKILL"),
    ],
)
def test_a_kernel_that_dies_is_told_with_its_cause(
    context: cellbox.CodeContext, code: str, reason: str, exit_code: int, cause: str
) -> None:
    context.run_code("kept = 1")
    started = time.monotonic()
    died = context.run_code(f"import ctypes, os, time\nprint('before', flush=True)\n{code}")
    assert time.monotonic() - started < 2
    assert (died.outcome, died.reason, died.exit_code, died.state_kept) == ("died", reason, exit_code, False)
    assert died.stdout == "before\n", "what it had printed is kept"
    assert died.error is not None
    assert cause in died.error
    fresh = context.run_code("'kept' in globals()")
    assert (fresh.text, fresh.error, fresh.state_kept) == ("False", None, True)


def test_sys_exit_ends_the_cell_and_not_the_kernel(context: cellbox.CodeContext) -> None:
    context.run_code("kept = 1")
    ended = context.run_code("import sys\nsys.exit(4)")
    assert (ended.exit_code, ended.outcome, ended.state_kept) == (4, "completed", True)
    assert context.run_code("kept").text == "1"


# --------------------------------------------------------------------------------------------- cells that do not end

STUBBORN = "import time\nwhile True:\n    try:\n        time.sleep(1)\n    except KeyboardInterrupt:\n        pass"
IGNORANT = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True:\n    time.sleep(0.1)"


@pytest.mark.parametrize(
    ("code", "outcomes"),
    [
        ("while True:\n    pass", {"interrupted"}),
        (STUBBORN, {"interrupted"}),
        (IGNORANT, {"interrupted"}),
        ("import asyncio\nawait asyncio.sleep(1e6)", {"interrupted"}),
        ("import subprocess\nsubprocess.run(['sleep', '1000'])", {"interrupted"}),
        ("import subprocess\nsubprocess.run('trap \"\" INT; sleep 1000', shell=True)", {"interrupted"}),
        ("!sleep 1000", {"interrupted"}),
        ("while True:\n    !true", {"interrupted"}),
        ("%%bash\nsleep 1000", {"interrupted"}),
        ("import threading\nthreading.Event().wait()", {"interrupted"}),
        ("class Slow:\n    def __repr__(self):\n        while True: pass\nSlow()", {"interrupted"}),
        ("import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')", {"interrupted", "killed"}),
        ("import numpy as np\nnp.linalg.svd(np.random.rand(4000, 4000))", {"interrupted", "killed"}),
    ],
)
def test_a_time_limit_can_not_be_dodged(
    context: cellbox.CodeContext, sandbox: cellbox.Sandbox, code: str, outcomes: set[str]
) -> None:
    context.run_code("kept = 1")
    started = time.monotonic()
    stopped = context.run_code(code, timeout_seconds=0.5)
    assert time.monotonic() - started < 0.5 + GRACE_SECONDS
    assert stopped.timed_out
    assert stopped.outcome in outcomes
    assert stopped.state_kept == (stopped.outcome == "interrupted"), "it says whether variables survived"
    assert "timeout after 0.5s" in (stopped.error or "")
    assert context.run_code("'kept' in globals()").text == str(stopped.state_kept)
    assert sandbox.exec("pgrep -x sleep").stdout == "", "what the cell started has ended with it"


def test_interrupt_from_another_thread(context: cellbox.CodeContext, sandbox: cellbox.Sandbox) -> None:
    assert not context.interrupt(), "nothing runs"
    context.run_code("kept = 1")
    with ThreadPoolExecutor() as pool:
        running = pool.submit(context.run_code, "print('on', flush=True)\nwhile True: pass", timeout_seconds=60)
        wait_until_busy(context, sandbox)
        assert context.interrupt()
        stopped = running.result(GRACE_SECONDS)
    assert (stopped.outcome, stopped.reason, stopped.state_kept) == ("interrupted", "interrupt", True)
    assert context.run_code("kept").text == "1"


def test_restart_from_another_thread(context: cellbox.CodeContext, sandbox: cellbox.Sandbox) -> None:
    context.run_code("kept = 1")
    with ThreadPoolExecutor() as pool:
        running = pool.submit(context.run_code, STUBBORN, timeout_seconds=60)
        wait_until_busy(context, sandbox)
        context.restart()
        stopped = running.result(GRACE_SECONDS)
    assert (stopped.outcome, stopped.reason, stopped.state_kept) == ("killed", "restart", False)
    assert context.run_code("'kept' in globals()").text == "False"


def test_concurrent_cells_wait_for_their_turn(context: cellbox.CodeContext, sandbox: cellbox.Sandbox) -> None:
    context.run_code("seen = []")
    with ThreadPoolExecutor() as pool:
        first = pool.submit(context.run_code, "import time\ntime.sleep(0.5)\nseen.append(0)")
        wait_until_busy(context, sandbox)
        # Their time limit counts from their own start: half a second of waiting does not use it up.
        others = [
            pool.submit(context.run_code, f"time.sleep(0.05)\nseen.append({n})", timeout_seconds=0.4) for n in (1, 2, 3)
        ]
        assert [cell.result(20).error for cell in [first, *others]] == [None] * 4
    order = json.loads(context.run_code("seen").text or "")
    assert order[0] == 0
    assert sorted(order) == [0, 1, 2, 3]


# ----------------------------------------------------------------------------------------------- callers that go away


def drop_request(daemon: Daemon, path: str, body: dict[str, object], while_open: Callable[[], object]) -> None:
    """Send a request and hang up before the answer."""
    address = urlsplit(daemon.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    headers = {"Authorization": f"Bearer {daemon.admin_key}", "Content-Type": "application/json"}
    connection.request("POST", path, json.dumps(body), headers)
    while_open()
    connection.close()


@pytest.mark.parametrize("route", ["run", "run/stream"])
def test_a_caller_that_hangs_up_interrupts_its_cell(
    daemon: Daemon, context: cellbox.CodeContext, sandbox: cellbox.Sandbox, route: str
) -> None:
    path = f"/v1/sandboxes/{sandbox.id}/repl/sessions/{context.id}/{route}"
    context.run_code("kept = 1")
    drop_request(daemon, path, {"code": "while True: pass"}, lambda: wait_until_busy(context, sandbox))
    started = time.monotonic()
    assert context.run_code("kept").text == "1"
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("route", ["run", "run/stream"])
def test_a_detached_cell_goes_on_without_its_caller(
    daemon: Daemon, context: cellbox.CodeContext, sandbox: cellbox.Sandbox, route: str
) -> None:
    path = f"/v1/sandboxes/{sandbox.id}/repl/sessions/{context.id}/{route}"
    code = "import time\ndone = False\nfor _ in range(10):\n    print('x' * 1000)\n    time.sleep(0.05)\ndone = True"
    drop_request(daemon, path, {"code": code, "on_disconnect": "detach"}, lambda: wait_until_busy(context, sandbox))
    assert context.run_code("done").text == "True"


# ----------------------------------------------------------------------------------------------------- the SDK's view


def test_events_come_in_the_order_of_the_cell(context: cellbox.CodeContext) -> None:
    code = "import sys\nprint(1)\ndisplay({'a': 1})\nprint('e', file=sys.stderr)\nprint(2)\n3"
    events = list(context.stream(code))
    kinds = [type(event) for event in events]
    assert kinds == [StdoutChunk, CellDisplay, StderrChunk, StdoutChunk, CellDisplay, CellEnded]
    shown = [event for event in events if isinstance(event, CellDisplay)]
    assert [(event.data["text/plain"], event.info.is_main) for event in shown] == [("{'a': 1}", False), ("3", True)]

    whole = context.run_code(code)
    assert (whole.stdout, whole.stderr, whole.text) == ("1\n2\n", "e\n", "3")
    assert [result.is_main for result in whole.results] == [False, True]


def test_output_comes_as_it_is_made(context: cellbox.CodeContext) -> None:
    times: list[float] = []
    printed: list[str] = []
    results: list[cellbox.Result] = []
    done = context.run_code(
        "import time\nfor n in range(3):\n    print(n)\n    time.sleep(0.2)\n7",
        on_stdout=lambda text: (printed.append(text), times.append(time.monotonic())),
        on_result=results.append,
    )
    assert "".join(printed) == done.stdout == "0\n1\n2\n"
    assert times[-1] - times[0] > 0.3
    assert [result.text for result in results] == ["7"]


def test_leaving_a_stream_interrupts_the_cell(context: cellbox.CodeContext) -> None:
    for event in context.stream("kept = 2\nprint('on', flush=True)\nwhile True: pass", timeout_seconds=60):
        assert isinstance(event, StdoutChunk)
        break
    started = time.monotonic()
    assert context.run_code("kept").text == "2"
    assert time.monotonic() - started < 2


def test_a_slow_reader_loses_nothing(context: cellbox.CodeContext) -> None:
    count = 0
    for event in context.stream("for n in range(200_000): print('line', n)", timeout_seconds=60):
        if isinstance(event, StdoutChunk):
            count += event.chunk.count("\n")
            time.sleep(0.001)
    assert count == 200_000
