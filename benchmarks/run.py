# ruff: noqa: E501, ISC004 - a program in a string, and tables
"""The figures of SPECIFICATION.md, measured through the SDK against a daemon: what a user waits for, end to end.

`python benchmarks/run.py` measures, prints a table and writes `results/<date>.json` and `results/<date>.md`.
`--jupyter` also measures a bare `ipykernel` on this host, installed in an environment of its own: the price of isolation.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cellbox import Client, Sandbox

HERE = Path(__file__).parent
STREAM_BYTES = 100 * 1000 * 1000
JUPYTER = ["jupyter_client>=8,<9", "ipykernel>=7,<8"]


def percentile(samples: list[float], rank: float) -> float:
    """Nearest rank: a figure that was really measured."""
    ordered = sorted(samples)
    return ordered[max(0, -(-len(ordered) * int(rank) // 100) - 1)]


def summary(samples: list[float]) -> dict[str, Any]:
    return {
        "n": len(samples),
        "p50": round(percentile(samples, 50), 2),
        "p90": round(percentile(samples, 90), 2),
        "p99": round(percentile(samples, 99), 2),
        "min": round(min(samples), 2),
        "samples": [round(one, 3) for one in samples],
    }


def milliseconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure_lives(client: Client, count: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Create → first cell answered, and kill; each sandbox on its own, nothing prepared by us."""
    figures: dict[str, list[float]] = {
        name: [] for name in ("create", "create → first cell", "daemon's boot_ms", "kill")
    }
    modes: dict[str, int] = {}
    for number in range(count):
        start = time.perf_counter()
        sandbox = Sandbox.create(ttl_seconds=300, client=client)
        try:
            figures["create"].append((time.perf_counter() - start) * 1000)
            answer = sandbox.create_code_context().run_code("1+1")
            figures["create → first cell"].append((time.perf_counter() - start) * 1000)
            assert answer.text == "2", answer
            figures["daemon's boot_ms"].append(float(sandbox.boot_ms or 0))
            modes[str(sandbox.boot_mode)] = modes.get(str(sandbox.boot_mode), 0) + 1
        finally:
            figures["kill"].append(milliseconds(sandbox.kill))
        if (number + 1) % 10 == 0:
            progress(f"  {number + 1} of {count} sandboxes")
    return figures, modes


def measure_warm(client: Client, count: int, streams: int) -> tuple[dict[str, list[float]], list[float]]:
    """Cells and commands on a sandbox that is already warm, and the speed of a long standard output."""
    with Sandbox.create(ttl_seconds=900, client=client) as sandbox:
        context = sandbox.create_code_context()
        for _ in range(10):
            context.run_code("1+1")
            sandbox.exec("true")
        progress(f"  {count} cells, {count} commands")
        figures = {
            "cell `1+1`": [milliseconds(lambda: context.run_code("1+1")) for _ in range(count)],
            'exec("true")': [milliseconds(lambda: sandbox.exec("true")) for _ in range(count)],
            "new code context": [milliseconds(sandbox.create_code_context) for _ in range(max(5, count // 20))],
        }
        rates: list[float] = []
        for _ in range(streams):
            progress("  100 MB of standard output")
            start = time.perf_counter()
            received = 0
            for event in sandbox.exec_stream(f"head -c {STREAM_BYTES} /dev/zero | tr '\\0' x", timeout_seconds=300):
                received += len(getattr(event, "chunk", ""))
            assert received == STREAM_BYTES, f"{received} bytes of {STREAM_BYTES}"
            rates.append(received / 1e6 / (time.perf_counter() - start))
    return figures, rates


JUPYTER_PROGRAM = """
import json, sys, time
from jupyter_client.manager import KernelManager
def answer(client, code):
    message = client.execute(code)
    while True:
        reply = client.get_shell_msg(timeout=60)
        if reply["parent_header"].get("msg_id") == message:
            break
    while True:
        event = client.get_iopub_msg(timeout=60)
        if event["msg_type"] == "status" and event["content"]["execution_state"] == "idle" and event["parent_header"].get("msg_id") == message:
            return
starts, stops, cells = [], [], []
for _ in range(int(sys.argv[1])):
    begin = time.perf_counter()
    manager = KernelManager(); manager.start_kernel()
    client = manager.client(); client.start_channels(); client.wait_for_ready(timeout=60)
    answer(client, "1+1")
    starts.append((time.perf_counter() - begin) * 1000)
    if not cells:
        for _ in range(int(sys.argv[2])):
            begin = time.perf_counter(); answer(client, "1+1"); cells.append((time.perf_counter() - begin) * 1000)
    begin = time.perf_counter()
    client.stop_channels(); manager.shutdown_kernel(now=True)
    stops.append((time.perf_counter() - begin) * 1000)
print(json.dumps({"create → first cell": starts, "cell `1+1`": cells, "kill": stops}))
"""


def measure_jupyter(lives: int, cells: int) -> dict[str, list[float]]:
    """The same questions to `jupyter_client` + `ipykernel` as a plain process of this host, without any isolation."""
    with tempfile.TemporaryDirectory(prefix="cellbox-bench-") as folder:
        progress("jupyter: installing into an environment of its own")
        venv.create(folder, with_pip=True)
        python = f"{folder}/bin/python"
        subprocess.run([python, "-m", "pip", "install", "-q", *JUPYTER], check=True)
        progress("jupyter: measuring")
        done = subprocess.run(
            [python, "-c", JUPYTER_PROGRAM, str(lives), str(cells)], check=True, capture_output=True, text=True
        )
        return json.loads(done.stdout.splitlines()[-1])


def machine() -> dict[str, Any]:
    """What a reader must know of the machine to judge the figures; nothing that names it."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory = int(Path("/proc/meminfo").read_text().split()[1]) // 1024
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_mib": memory,
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def table(report: dict[str, Any]) -> str:
    lines = [
        "# Benchmark",
        "",
        f"{report['date']} · {report['machine']['cpu']}, {report['machine']['cores']} cores, "
        f"{report['machine']['memory_mib']} MiB · Linux {report['machine']['kernel']} · Python {report['machine']['python']} · "
        f"load before: {report['machine']['load_before']}",
        "",
        f"Engine: {report['engine']} · template: code-interpreter · boot modes: {report['boot_modes']}",
        "",
        "Client and daemon on the same machine, one request after the other, whole calls through the SDK over HTTP, in ms.",
        "Percentiles by nearest rank; nothing is dropped.",
        "",
        "| figure | n | p50 | p90 | p99 | min |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for system, figures in report["figures_ms"].items():
        for name, one in figures.items():
            lines.append(
                f"| {system}: {name} | {one['n']} | {one['p50']} | {one['p90']} | {one['p99']} | {one['min']} |"
            )
    rates = report["stream_mb_per_s"]
    lines += ["", f"100 MB of standard output, streamed: {', '.join(f'{rate:.0f}' for rate in rates)} MB/s.", ""]
    if "jupyter on the host" in report["figures_ms"]:
        lines += [
            "`jupyter on the host` is `jupyter_client` with `ipykernel` as a plain process, without any isolation, pandas not",
            "imported: the floor of that technique and not an alternative to a sandbox.",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lives", type=int, default=100, help="sandboxes to create and kill")
    parser.add_argument("--calls", type=int, default=500, help="cells and commands on a warm sandbox")
    parser.add_argument("--streams", type=int, default=3, help="streams of 100 MB")
    parser.add_argument("--jupyter", action="store_true", help="also measure a bare ipykernel on this host")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()

    facts = machine()
    with Client() as client:
        engine = client.capabilities()
        progress("cellbox: warming up")
        Sandbox.create(ttl_seconds=300, client=client).kill()
        gc.disable()
        progress("cellbox: lives")
        lives, modes = measure_lives(client, options.lives)
        progress("cellbox: a warm sandbox")
        warm, rates = measure_warm(client, options.calls, options.streams)
        gc.enable()
    systems = {"cellbox": lives | warm}
    if options.jupyter:
        systems["jupyter on the host"] = measure_jupyter(min(options.lives, 20), options.calls)
    report: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": facts,
        "engine": f"{engine.engine} {engine.engine_version}",
        "boot_modes": modes,
        "figures_ms": {
            system: {name: summary(one) for name, one in figures.items()} for system, figures in systems.items()
        },
        "stream_mb_per_s": [round(rate, 1) for rate in rates],
    }
    options.output.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(report, ensure_ascii=False, indent=1) + "\n"), (".md", table(report))):
        (options.output / f"{report['date']}{suffix}").write_text(text)
    print(table(report))


if __name__ == "__main__":
    main()
