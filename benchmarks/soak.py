# ruff: noqa: ARG005, E501 - cells and their checks, one a line
"""Thousands of mixed cells over twenty contexts: nothing may hang, lose output or grow.

`python benchmarks/soak.py` runs them from as many threads as there are contexts, checks what every cell printed, showed and
raised, prints how memory and processes went, and writes `results/soak-<date>.json`. It fails at the first wrong answer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from run import HERE, machine, percentile, progress

from cellbox import Client, CodeContext, Execution, Sandbox

Check = Callable[[Execution, int], bool]
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2], label='{n}')\nplt.show()"

KINDS: list[tuple[int, str, str, Check, dict[str, Any]]] = [
    # weight, name, code, what must come of it, options
    (30, "value", "{n} + 1", lambda done, n: done.text == str(n + 1), {}),
    (14, "lines", "for i in range(2000): print({n}, i)",
     lambda done, n: done.stdout == "".join(f"{n} {i}\n" for i in range(2000)), {}),
    (6, "text", "print('{n}' * 200_000)", lambda done, n: done.stdout == f"{n}" * 200_000 + "\n", {}),
    (8, "state", "kept = {n}\nkept", lambda done, n: done.text == str(n), {}),
    (8, "error", "1 / 0", lambda done, n: "ZeroDivisionError" in (done.error or ""), {}),
    (6, "plot", PLOT, lambda done, n: [bool(one.png) for one in done.results] == [True], {}),
    (6, "frame", "import pandas as pd\npd.DataFrame({{'a': [{n}]}})", lambda done, n: str(n) in (done.results[0].html or ""), {}),
    (5, "displays", "for i in range(50): display(i)",
     lambda done, n: [one.text for one in done.results] == [str(i) for i in range(50)], {}),
    (5, "subprocess", "print(1)\n!echo {n}\nprint(2)", lambda done, n: done.stdout == f"1\n{n}\n2\n", {}),
    (4, "thread", "import threading\nt = threading.Thread(target=print, args=({n},)); t.start(); t.join()",
     lambda done, n: done.stdout == f"{n}\n", {}),
    (3, "await", "import asyncio\nawait asyncio.sleep(0.01, {n})", lambda done, n: done.text == str(n), {}),
    (2, "pool", "import multiprocessing as mp\nwith mp.Pool(2) as p: r = p.map(abs, [-{n}, 1])\nr",
     lambda done, n: done.text == str([n, 1]), {}),
    (2, "time limit", "while True: pass", lambda done, n: done.timed_out and done.state_kept, {"timeout_seconds": 0.2}),
    (1, "death", "import os\nprint({n}, flush=True)\nos._exit(3)",
     lambda done, n: (done.outcome, done.stdout) == ("died", f"{n}\n"), {}),
]  # fmt: skip
WHEEL = [kind for kind in KINDS for _ in range(kind[0])]


def run_cells(context: CodeContext, numbers: range, every: int) -> list[tuple[str, float]]:
    """Run this context's share. A step through the wheel that shares no factor with its size mixes the kinds."""
    times: list[tuple[str, float]] = []
    for number in numbers:
        _, name, code, check, options = WHEEL[number * 37 % len(WHEEL)]
        begin = time.perf_counter()
        done = context.run_code(code.format(n=number), **{"timeout_seconds": 120, **options})
        times.append((name, (time.perf_counter() - begin) * 1000))
        assert check(done, number), f"cell {number} ({name}): {done!r} {done.error} {done.stdout[-200:]!r}"
        if number % every == 0:
            progress(f"  cell {number}")
    return times


def state_of(sandbox: Sandbox) -> dict[str, int]:
    """Memory and processes of the sandbox, as it sees itself."""
    look = "grep -E '^AnonPages' /proc/meminfo | tr -dc 0-9; echo; ls -d /proc/[0-9]* | wc -l; ls /proc/*/fd 2>/dev/null | wc -l"
    anonymous, processes, descriptors = map(int, sandbox.exec(look).stdout.split())
    return {"anonymous_mb": anonymous // 1024, "processes": processes, "descriptors": descriptors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=5000)
    parser.add_argument("--contexts", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5, help="after each of which memory is looked at")
    parser.add_argument("--memory-mb", type=int, default=4096)
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    facts = machine()
    begin = time.perf_counter()
    times: list[tuple[str, float]] = []
    with (
        Client() as client,
        Sandbox.create("code-interpreter", ttl_seconds=7200, memory_mb=options.memory_mb, client=client) as sandbox,
        ThreadPoolExecutor(options.contexts) as pool,
    ):
        states = [state_of(sandbox)]
        contexts = [sandbox.create_code_context() for _ in range(options.contexts)]
        states.append(state_of(sandbox))
        share = options.cells // options.rounds // options.contexts
        for turn in range(options.rounds):
            first = turn * share * options.contexts
            shares = [range(first + at * share, first + (at + 1) * share) for at in range(options.contexts)]
            done = pool.map(run_cells, contexts, shares, itertools.repeat(250))
            times += [one for cells in done for one in cells]
            states.append(state_of(sandbox))
            progress(f"round {turn + 1} of {options.rounds}: {len(times)} cells, {states[-1]}")
    facts["load_after"] = round(os.getloadavg()[0], 2)
    report: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": facts,
        "cells": len(times),
        "contexts": options.contexts,
        "memory_mb": options.memory_mb,
        "seconds": round(time.perf_counter() - begin, 1),
        "before, with contexts, after each round": states,
        "kinds": {
            name: {
                "cells": count,
                "p50_ms": round(percentile(own := [ms for kind, ms in times if kind == name], 50), 1),
                "p99_ms": round(percentile(own, 99), 1),
                "max_ms": round(max(own), 1),
            }
            for name, count in Counter(kind for kind, _ in times).items()
        },
    }
    options.output.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, ensure_ascii=False, indent=1) + "\n"
    (options.output / f"soak-{report['date']}.json").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
