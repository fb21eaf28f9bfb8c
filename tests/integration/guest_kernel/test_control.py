# ruff: noqa: E501 - cells read best on one line
"""Stopping cells, dying kernels, queues and limits: a context is never wedged, and the caller is told what happened."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from cellbox.guest.contexts import MAX_CONTEXTS
from cellbox.wire import messages
from cellbox.wire.frames import Kind

STUBBORN = [
    "import time\nwhile True:\n    try: time.sleep(1)\n    except KeyboardInterrupt: pass",
    "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(1000)",
    "!sleep 1000",
    "import subprocess; subprocess.run(['sleep', '1000'])",
    "import subprocess; subprocess.run('sleep 1000 & sleep 1000; wait', shell=True)",
    "while True:\n    !true",
    "%%bash\nsleep 1000",
    "import threading; threading.Event().wait()",
    "import asyncio\nawait asyncio.sleep(1e6)",
    "import asyncio\nasyncio.run(asyncio.sleep(1e6))",
    "class R:\n    def __repr__(self):\n        while True: pass\nR()",
    "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')",
    "import multiprocessing as mp, time\nwith mp.Pool(2) as p: p.map(time.sleep, [100, 100])",
    "while True: print('x' * 1000)",
]


@pytest.mark.parametrize("code", STUBBORN)
def test_a_timeout_stops_the_cell_and_keeps_the_state(shared, code):
    shared.run("kept = 1; print()")
    outcome = shared.run(code, timeout=0.3)
    assert (outcome.answer["outcome"], outcome.answer["reason"]) == ("interrupted", "timeout")
    assert outcome.answer["state_kept"]
    assert "time limit of 0.3 s" in outcome.answer["hint"]
    assert outcome.seconds < 4
    after = shared.run("import time; time.sleep(0.05); kept")
    assert (after.text, after.error["name"]) == ("1", "")


def test_a_cell_that_cannot_be_stopped_costs_the_kernel(fresh):
    deaf = "import signal\nfor n in signal.valid_signals() - {9, 19}: signal.signal(n, signal.SIG_IGN)\n"
    outcome = fresh.run(f"{deaf}print('partial')\nwhile True: pass", 0.2)
    assert (outcome.answer["outcome"], outcome.answer["reason"]) == ("killed", "timeout")
    assert not outcome.answer["state_kept"]
    assert outcome.stdout == "partial\n"
    assert outcome.seconds < 4
    assert fresh.run("1").text == "1"


DEATHS = [
    ("import os; os.kill(os.getpid(), 9)", "signal", 137),
    ("import ctypes; ctypes.string_at(0)", "signal", 139),
    ("import os; os._exit(3)", "exit", 3),
    ("import os; os.execvp('sh', ['sh', '-c', 'exit 4'])", "exit", 4),
    ("import os\nfor fd in range(100, 400):\n    try: os.write(fd, b'garbage')\n    except OSError: pass\nwhile True: pass", "signal", 137),
    ("import os\nos.closerange(3, 1000)\nwhile True: pass", "signal", 137),
]  # fmt: skip


@pytest.mark.parametrize(("code", "reason", "status"), DEATHS)
def test_a_dying_kernel_is_reported_and_replaced(fresh, code, reason, status):
    outcome = fresh.run("print('partial')\n" + code)
    assert (outcome.answer["outcome"], outcome.answer["reason"], outcome.answer["exit"]) == ("died", reason, status)
    assert outcome.stdout.startswith("partial\n")
    assert outcome.seconds < 2
    assert fresh.run("1").text == "1"


def test_a_kernel_killed_for_its_memory_says_so(bench, fresh):
    async def kill() -> dict:
        _, outcome, done = bench.host.open(messages.RunCell(context_id=fresh.id, code="while True: pass"))
        await asyncio.sleep(0.2)
        pid = bench.contexts._contexts[fresh.id].kernel.pid
        assert bench.contexts.note_out_of_memory(pid)
        os.kill(pid, 9)
        await done
        return outcome.answer

    answer = bench.runner.run(kill())
    assert (answer["outcome"], answer["reason"]) == ("died", "out_of_memory")


def test_a_forked_child_never_acts_as_the_kernel(fresh):
    outcome = fresh.run(
        "import os, time\nif os.fork() == 0:\n    time.sleep(0.2)\n    print('late child')\nelse: print('parent')"
    )
    assert outcome.stdout == "parent\n"
    fresh.bench.idle(0.4)
    after = fresh.run("try: print(os.wait()[1])\nexcept ChildProcessError: print('none')")
    assert after.stdout == "late child\n0\n"


def test_interrupting_a_cell_spares_what_earlier_cells_left_running(fresh):
    fresh.run("import subprocess; server = subprocess.Popen(['sleep', '1000'])")
    fresh.run("while True: pass", 0.2)
    assert fresh.run("server.poll()").text is None
    fresh.run("server.kill(); server.wait()")


def test_cells_queue_in_order_and_a_waiting_one_can_be_given_up(bench, fresh):
    async def flow() -> list:
        host = bench.host
        runs = [
            host.open(
                messages.RunCell(
                    context_id=fresh.id, code=f"import time; time.sleep({0.3 if n == 0 else 0}); print({n})"
                )
            )
            for n in range(4)
        ]
        host.send(Kind.CANCEL, runs[2][0])
        await asyncio.gather(*(run[2] for run in runs))
        return [(run[1].stdout, run[1].answer["outcome"], run[1].answer["execution_count"]) for run in runs]

    assert bench.runner.run(flow()) == [
        ("0\n", "completed", 1), ("1\n", "completed", 2), ("", "interrupted", 0), ("3\n", "completed", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("request_type", "outcome", "reason"),
    [(messages.InterruptContext, "interrupted", "interrupt"), (messages.RestartContext, "killed", "restart")],
)
def test_interrupt_and_restart_from_another_request(bench, fresh, request_type, outcome, reason):
    async def flow() -> tuple:
        _, run, done = bench.host.open(messages.RunCell(context_id=fresh.id, code="kept = 1\nwhile True: pass"))
        await asyncio.sleep(0.2)
        answer = await bench.host.ask(request_type(context_id=fresh.id))
        await done
        return answer.answer, run.answer

    answer, done = bench.runner.run(flow())
    assert answer["type"] in ("interrupted", "context")
    assert (done["outcome"], done["reason"]) == (outcome, reason)
    assert fresh.run("'kept' in globals()").text == str(outcome == "interrupted")


def test_cancel_interrupts(bench, fresh):
    async def flow() -> dict:
        stream, run, done = bench.host.open(
            messages.RunCell(context_id=fresh.id, code="while True: print('x' * 1000)"), takes=False
        )
        await asyncio.sleep(0.5)  # the window is full: the kernel blocks in its own write
        bench.host.send(Kind.CANCEL, stream)
        await asyncio.wait_for(done, 5)
        assert len(run.stdout) < 3_000_000
        return run.answer

    answer = bench.runner.run(flow())
    assert (answer["outcome"], answer["reason"]) == ("interrupted", "cancelled")
    assert fresh.run("1").text == "1"


def test_closing_ends_the_whole_process_group(bench):
    context = bench.context()
    context.run("import subprocess; p = subprocess.Popen('sleep 1000 & exec sleep 1000', shell=True)")
    pid = int(context.run("p.pid").text)
    context.close()
    assert _is_gone(pid)
    assert context.run("1").answer["code"] == "context_not_found"


def test_refusals(bench):
    assert bench.ask(messages.CreateContext(context_id="x", language="cobol")).answer["code"] == "unknown_language"
    missing = bench.ask(messages.CreateContext(context_id="x", cwd="/no/such"))
    assert (missing.answer["code"], "/no/such" in missing.answer["message"]) == ("invalid_request", True)
    assert bench.ask(messages.RunCell(context_id="nope", code="1")).answer["code"] == "context_not_found"
    assert bench.ask(messages.ListLanguages()).answer["languages"].count("python") == 1


def test_the_number_of_contexts_is_limited(bench):
    made = []
    while (answer := bench.ask(messages.CreateContext(context_id=f"many-{len(made)}")).answer)["type"] == "context":
        made.append(answer["context_id"])
        assert len(made) <= MAX_CONTEXTS
    assert answer["code"] == "context_limit"
    listed = bench.ask(messages.ListContexts()).answer["contexts"]
    assert len(listed) == MAX_CONTEXTS
    for context_id in made:
        bench.ask(messages.CloseContext(context_id=context_id))


def test_cwd_and_env_of_a_context(bench, tmp_path):
    place = tmp_path / "a b" / "ü"
    place.mkdir(parents=True)
    context = bench.context(cwd=str(place), env={"A": "x"})
    for _ in range(2):  # the second kernel has them too
        assert context.run("import os; os.getcwd(), os.environ['A']").text == repr((str(place), "x"))
        context.run("os._exit(0)")
    context.close()


def test_output_shows_while_the_cell_runs(bench, fresh):
    async def flow() -> float:
        stream, _, done = bench.host.open(
            messages.RunCell(context_id=fresh.id, code="import time\nprint('a', end='')\ntime.sleep(0.6)")
        )
        await done
        return time.monotonic() - bench.host.first_output[stream]

    assert bench.runner.run(flow()) > 0.4


def test_late_output_comes_with_the_next_cell(fresh):
    fresh.run("import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()")
    fresh.bench.idle(0.3)
    assert fresh.run("print('next')").stdout == "late\nnext\n"


def test_floods_between_cells_are_bounded_and_counted(fresh):
    fresh.run("import subprocess; p = subprocess.Popen('head -c 3000000 /dev/zero', shell=True)")
    fresh.bench.idle(0.4)
    outcome = fresh.run("p.wait()")
    assert outcome.text == "0"
    assert "more bytes that background work wrote" in outcome.stderr


def test_large_output_is_complete(shared):
    outcome = shared.run("for i in range(200_000): print('x' * 49)", timeout=30)
    assert len(outcome.stdout) == 10_000_000


def test_large_code_arrives(shared):
    assert shared.run(f"len('{'y' * 3_000_000}')").text == "3000000"


def test_every_cell_has_its_output(shared):
    for n in range(300):
        assert shared.run(f"print({n})").stdout == f"{n}\n"


def test_background_threads_are_counted(fresh):
    fresh.run("import threading; stop = threading.Event(); threading.Thread(target=stop.wait).start()")
    assert fresh.run("1").answer["background_threads"] == 1
    assert fresh.run("stop.set(); import time; time.sleep(0.05)").answer["background_threads"] == 0


def _is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True
