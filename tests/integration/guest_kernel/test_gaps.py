"""Odds and ends of cells: installs without a network, tables without limits, output between cells, closing."""

from __future__ import annotations

import asyncio
import time

from cellbox.guest.kernel import hints
from cellbox.wire import messages
from cellbox.wire.frames import Kind


def test_pip_says_nothing_of_a_restart(shared):
    outcome = shared.run("%pip --version")
    assert outcome.stdout.startswith("pip ")
    assert "restart" not in outcome.stdout


def test_the_hint_for_installs():
    assert hints._INSTALLS.search("/usr/bin/python3 -m pip install x")
    assert hints._INSTALLS.search("uv pip install x")
    assert not hints._INSTALLS.search("ls pip")


def test_a_table_without_limits_is_rendered_in_no_time(fresh):
    assert fresh.run("import pandas").error["name"] == ""
    started = time.monotonic()
    outcome = fresh.run(
        "import pandas as pd\npd.set_option('display.max_rows', None)\npd.set_option('display.max_columns', None)\n"
        "frame = pd.DataFrame({f'c{i}': range(1_000_000) for i in range(8)})\nframe"
    )
    assert time.monotonic() - started < 10
    assert outcome.error["name"] == ""
    bundle = outcome.displays[-1]["bundle"]
    assert "1000000 rows" in bundle["text/html"]
    series = fresh.run("frame['c0']")
    assert "Length: 1000000" in series.text or "more characters" in series.text
    assert "999999" in fresh.run("pd.reset_option('all')\nframe").text


def test_a_table_of_any_shape_keeps_its_html(fresh):
    fresh.run(
        "import pandas as pd\npd.set_option('display.max_rows', None)\npd.set_option('display.max_columns', None)"
    )
    for shape in ("{'n': range(30_000)}", "{f't{i}': ['<' * 49] * 1000 for i in range(20)}"):
        display = fresh.run(f"pd.DataFrame({shape})").displays[-1]
        assert display["omitted"] == {}
        assert "</table>" in display["bundle"]["text/html"]


def test_output_after_a_fork_in_a_burst_does_not_wait_for_the_end(bench, fresh):
    code = (
        "import os, time\nfor n in range(2000): print(n)\nif os.fork() == 0: os._exit(0)\nos.wait()\n"
        "print('after', end='', flush=False)\ntime.sleep(30)"
    )

    async def watch() -> str:
        stream, outcome, done = bench.host.open(messages.RunCell(context_id=fresh.id, code=code))
        async with asyncio.timeout(20):
            while not outcome.stdout.endswith("after"):
                await asyncio.sleep(0.02)
        is_running = not done.done()
        bench.host.send(Kind.CANCEL, stream)
        await done
        assert is_running
        return outcome.stderr

    assert "multi-threaded" not in bench.runner.run(watch())


def test_late_output_is_tagged(fresh, tmp_path):
    said = tmp_path / "said"
    late = f"lambda: (time.sleep(0.3), print('late'), open({str(said)!r}, 'w').close())"
    fresh.run(f"import threading, time\nthreading.Thread(target={late}).start()")
    deadline = time.monotonic() + 30
    while not said.exists():
        assert time.monotonic() < deadline
        fresh.bench.idle(0.05)
    fresh.bench.idle(0.1)
    outcome = fresh.run("print('own')")
    assert outcome.stdout == "late\nown\n"
    assert outcome.late == {"stdout": 5, "stderr": 0}
    assert fresh.run("print('own')").late == {"stdout": 0, "stderr": 0}


def test_closing_a_context_ends_its_cell_as_closed(bench):
    context = bench.context(cwd="/tmp")

    async def close_while_running():
        _, outcome, done = bench.host.open(messages.RunCell(context_id=context.id, code="import time; time.sleep(60)"))
        await asyncio.sleep(0.3)
        await bench.host.ask(messages.CloseContext(context_id=context.id))
        await asyncio.wait_for(done, 10)
        return outcome

    outcome = bench.runner.run(close_while_running())
    assert (outcome.answer["outcome"], outcome.answer["reason"]) == ("killed", "closed")
    assert outcome.answer["hint"] == "The context was closed."
