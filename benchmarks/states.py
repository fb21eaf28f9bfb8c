"""Times of snapshot, restore, fork, pause and hibernation through the real HTTP API, and a soak of them.

    python benchmarks/states.py            # a table: p50 and worst, in milliseconds
    python benchmarks/states.py --soak 2000   # so many cycles of write, hibernate or pause, compare every hash

Runs against the daemon that the environment names, or a private one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from cellbox import Client, Sandbox

PREPARE = "import numpy as np, pandas as pd\nframe = pd.DataFrame(np.random.rand(10_000, 8))\nlen(frame)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--soak", type=int, default=0, metavar="CYCLES")
    options = parser.parse_args()
    print(f"load average at the start: {os.getloadavg()[0]:.1f}")
    if options.soak:
        soak(options.soak)
    else:
        table(options.runs)


def table(runs: int) -> None:
    """Measure each operation on a sandbox with pandas loaded."""
    with Client() as client, Sandbox.create(ttl_seconds=3600, client=client) as sandbox:
        context = sandbox.create_code_context()
        context.run_code(PREPARE)
        snapshot = sandbox.snapshot()
        print(f"image: {snapshot.size_bytes / 1e6:.0f} MB")

        def first_cell(made: Sandbox) -> None:
            assert made.get_code_context(context.id).run_code("len(frame)").text == "10000"
            made.kill()

        measure("snapshot", runs, sandbox.snapshot, lambda one: client.snapshots.delete(one.id))
        measure(
            "create from snapshot", runs, lambda: Sandbox.create(from_snapshot=snapshot.id, client=client), first_cell
        )
        measure("fork", runs, sandbox.fork, first_cell)
        measure(
            "fork_tree(8), all",
            max(3, runs // 5),
            lambda: sandbox.fork_tree(8),
            lambda all_: [one.kill() for one in all_],
        )
        measure("pause", runs, sandbox.pause, lambda _: sandbox.resume())
        measure("resume", runs, sandbox.resume, lambda _: None, before=sandbox.pause)
        measure("hibernate", runs, sandbox.hibernate, lambda _: sandbox.wake())
        measure("wake", runs, sandbox.wake, lambda _: None, before=sandbox.hibernate)
        print(f"parent's longest silence while forked: {silence(sandbox):.0f} ms")
        client.snapshots.delete(snapshot.id)


def measure(
    name: str,
    runs: int,
    work: Callable[[], Any],
    after: Callable[[Any], object],
    *,
    before: Callable[[], object] | None = None,
) -> None:
    times: list[float] = []
    for _ in range(runs):
        if before is not None:
            before()
        started = time.perf_counter()
        result = work()
        times.append((time.perf_counter() - started) * 1000)
        after(result)
    print(f"{name:24} p50 {statistics.median(times):7.1f}   worst {max(times):7.1f}   n={runs}")


def silence(sandbox: Sandbox) -> float:
    """The longest gap that a program in the sandbox sees on its own clock while it is forked, less its usual one."""
    code = (
        "import time\nend = time.monotonic() + 4\nlast = time.monotonic()\nworst = 0\n"
        "while last < end:\n    now = time.monotonic()\n    worst = max(worst, now - last)\n    last = now\n"
        "worst * 1000"
    )
    gaps: list[float] = []
    for is_forked in (False, True):
        runner = threading.Thread(target=lambda: gaps.append(float(sandbox.run_code(code).text or "0")))
        runner.start()
        time.sleep(1.5)
        if is_forked:
            sandbox.fork().kill()
        runner.join()
    return gaps[1] - gaps[0]


def soak(cycles: int) -> None:
    """Write, rest, compare; every cycle by another way to rest."""
    with Sandbox.create("base", ttl_seconds=24 * 3600) as sandbox:
        expected: list[str] = []
        started = time.monotonic()
        for cycle in range(cycles):
            command = f"mkdir -p d; head -c 100000 /dev/urandom > d/{cycle % 50}; sha256sum d/*"
            found = sandbox.exec(command, check=True).stdout.splitlines()
            changed = [line for line in expected if line not in found]
            assert len(changed) <= 1, f"cycle {cycle}: {len(changed)} files changed"
            expected = found
            if cycle % 4 == 3:
                sandbox.pause()
                sandbox.resume()
            elif cycle % 4 == 2:
                sandbox.hibernate()
                sandbox.wake()
            else:
                sandbox.hibernate()
            again = sandbox.exec("sha256sum d/*", check=True).stdout.splitlines()
            assert again == expected, f"cycle {cycle}: what was written is not what is there"
            if cycle % 100 == 99:
                print(
                    f"{cycle + 1} cycles, {(time.monotonic() - started) / (cycle + 1) * 1000:.0f} ms each", flush=True
                )
    print(f"{cycles} cycles, every hash equal")


if __name__ == "__main__":
    main()
