# ruff: noqa: E501, ISC004 - a program in a string, and tables
"""Our kernel beside `jupyter_client` + `ipykernel`, on the bare host and inside a sandbox, in one run.

`python benchmarks/kernel.py` measures, prints a table and writes `results/kernel-<date>.json` and `.md`. ipykernel is
installed into an environment of its own on the host, and from a wheelhouse, uploaded through the SDK, in the sandbox.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import tempfile
import time
import venv
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from run import HERE, JUPYTER, machine, milliseconds, progress, summary

from cellbox import Client, CodeContext, Sandbox

LINES = "line = 'x' * 99\nfor _ in range({}): print(line)"
LANGUAGES = {"bash": "echo 2", "javascript": "1+1"}
PACE_SECONDS = 0.5
"""Between contexts where each finds a kernel that was forked ahead."""

JUPYTER_PROGRAM = """
import json, sys, time
from jupyter_client.manager import KernelManager
def answer(client, code):
    message, size = client.execute(code), 0
    while True:
        event = client.get_iopub_msg(timeout=120)
        if event["parent_header"].get("msg_id") != message: continue
        if event["msg_type"] == "stream": size += len(event["content"]["text"])
        if event["msg_type"] == "status" and event["content"]["execution_state"] == "idle": break
    while client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != message: pass
    return size
contexts, cells, rates = [], [], []
for _ in range(int(sys.argv[1])):
    begin = time.perf_counter()
    manager = KernelManager(); manager.start_kernel()
    client = manager.client(); client.start_channels(); client.wait_for_ready(timeout=120)
    contexts.append((time.perf_counter() - begin) * 1000)
    if len(contexts) == 1:
        for _ in range(int(sys.argv[2])):
            begin = time.perf_counter(); answer(client, "1+1"); cells.append((time.perf_counter() - begin) * 1000)
        for _ in range(int(sys.argv[4])):
            begin = time.perf_counter(); size = answer(client, sys.argv[3])
            rates.append(size / 1e6 / (time.perf_counter() - begin))
    client.stop_channels(); manager.shutdown_kernel(now=True)
print(json.dumps({"cell `1+1`": cells, "new context": contexts, "stdout MB/s": rates}))
"""


def rate_of(context: CodeContext, lines: int) -> float:
    """MB/s of a cell that prints so many lines of 100 bytes, as Python strings here."""
    begin, size = time.perf_counter(), 0
    for event in context.stream(LINES.format(lines), timeout_seconds=600):
        size += len(getattr(event, "chunk", ""))
    assert size == lines * 100, f"{size} bytes of {lines * 100}"
    return size / 1e6 / (time.perf_counter() - begin)


def measure_cellbox(client: Client, options: argparse.Namespace) -> dict[str, list[float]]:
    """Through SDK and HTTP, against a daemon on this machine."""
    with Sandbox.create("code-interpreter", ttl_seconds=1800, client=client) as sandbox:
        context = sandbox.create_code_context()
        for _ in range(10):
            context.run_code("1+1")
        sandbox.create_code_context().close()  # from the second on, kernels are forked ahead
        contexts: dict[float, list[float]] = {PACE_SECONDS: [], 0.0: []}
        for pause, times in contexts.items():
            for _ in range(options.contexts):
                time.sleep(pause)
                begin = time.perf_counter()
                made = sandbox.create_code_context()
                times.append((time.perf_counter() - begin) * 1000)
                made.close()
        return {
            "cell `1+1`": [milliseconds(lambda: context.run_code("1+1")) for _ in range(options.cells)],
            f"new context, {PACE_SECONDS} s apart": contexts[PACE_SECONDS],
            "new context, back to back": contexts[0.0],
            "stdout MB/s": [rate_of(context, options.lines) for _ in range(options.streams)],
        }


def measure_languages(client: Client, options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Contexts of other languages, where the template `polyglot` is built."""
    figures: dict[str, dict[str, list[float]]] = {}
    with contextlib.suppress(Exception), Sandbox.create("polyglot", ttl_seconds=1800, client=client) as sandbox:
        for language, code in LANGUAGES.items():
            contexts: list[float] = []
            for _ in range(max(3, options.contexts // 5)):
                begin = time.perf_counter()
                context = sandbox.create_code_context(language=language)
                contexts.append((time.perf_counter() - begin) * 1000)
                cells = [
                    milliseconds(lambda one=context, code=code: one.run_code(code)) for _ in range(options.cells // 10)
                ]
                context.close()
            figures[f"cellbox, {language}"] = {"cell `1+1`": cells, "new context": contexts}
    return figures


def program_arguments(options: argparse.Namespace) -> list[str]:
    lives = str(max(3, options.contexts // 4))
    return [lives, str(options.cells), LINES.format(options.lines), str(options.streams)]


def measure_on_host(options: argparse.Namespace) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="cellbox-bench-") as folder:
        progress("ipykernel on the host: installing into an environment of its own")
        venv.create(folder, with_pip=True)
        python = f"{folder}/bin/python"
        subprocess.run([python, "-m", "pip", "install", "-q", *JUPYTER], check=True)
        progress("ipykernel on the host: measuring")
        command = [python, "-c", JUPYTER_PROGRAM, *program_arguments(options)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(done.stdout.splitlines()[-1])


def measure_inside(client: Client, options: argparse.Namespace) -> dict[str, list[float]]:
    """The same program in a sandbox: what it costs there to do as others do, without HTTP and SDK."""
    with (
        Sandbox.create("code-interpreter", ttl_seconds=1800, client=client) as sandbox,
        tempfile.TemporaryDirectory(prefix="cellbox-bench-") as folder,
    ):
        progress("ipykernel in the sandbox: collecting wheels")
        version = sandbox.exec("python3 -c 'import sys; print(*sys.version_info[:2], sep=\".\")'").stdout.strip()
        platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 26, 27, 28)] + [
            "--platform=manylinux2014_x86_64"
        ]
        command = [
            "pip",
            "download",
            "-q",
            "--only-binary=:all:",
            f"--python-version={version}",
            *platforms,
            "-d",
            folder,
            *JUPYTER,
        ]
        subprocess.run(["python3", "-m", *command], check=True)
        for wheel in Path(folder).iterdir():
            sandbox.filesystem.upload(wheel, f"/tmp/wheels/{wheel.name}")
        flags = "--break-system-packages --root-user-action=ignore --no-index --find-links=/tmp/wheels"
        made = sandbox.exec(
            f"python3 -m pip install -q {flags} {' '.join(repr(one) for one in JUPYTER)}", timeout_seconds=600
        )
        assert made.exit_code == 0, made.stderr
        sandbox.filesystem.write("/tmp/bench.py", JUPYTER_PROGRAM)
        progress("ipykernel in the sandbox: measuring")
        lives, cells, code, streams = program_arguments(options)
        sandbox.filesystem.write("/tmp/code.py", code)
        done = sandbox.exec(
            f'python3 /tmp/bench.py {lives} {cells} "$(cat /tmp/code.py)" {streams}', timeout_seconds=1200
        )
        assert done.exit_code == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])


def table(report: dict[str, Any]) -> str:
    facts = report["machine"]
    lines = [
        "# The kernel beside ipykernel",
        "",
        f"{report['date']} · {facts['cpu']}, {facts['cores']} cores, {facts['memory_mib']} MiB · Linux {facts['kernel']} · "
        f"Python {facts['python']} · load before and after: {facts['load_before']}, {facts['load_after']} · engine {report['engine']}",
        "",
        "Ours: whole calls through SDK and HTTP. ipykernel: `jupyter_client` in the same place as its kernel, no HTTP. One after",
        f"the other; ms and MB/s; percentiles by nearest rank. stdout: {report['stdout_mb']} MB in lines of 100 bytes, printed.",
        "",
        "| system | figure | n | p50 | p90 | p99 | min |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for system, figures in report["figures"].items():
        for name, one in figures.items():
            lines.append(
                f"| {system} | {name} | {one['n']} | {one['p50']} | {one['p90']} | {one['p99']} | {one['min']} |"
            )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=300)
    parser.add_argument("--contexts", type=int, default=20)
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--lines", type=int, default=1_000_000, help="of 100 bytes each")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    options = parser.parse_args()
    facts = machine()
    with Client() as client:
        engine = client.capabilities()
        progress("cellbox")
        systems = {"cellbox": measure_cellbox(client, options)}
        progress("cellbox: other languages")
        systems |= measure_languages(client, options)
        systems["ipykernel in the sandbox"] = measure_inside(client, options)
        systems["ipykernel on the host"] = measure_on_host(options)
    facts["load_after"] = round(os.getloadavg()[0], 2)
    report: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": facts,
        "engine": f"{engine.engine} {engine.engine_version}",
        "stdout_mb": options.lines / 10_000,
        "figures": {
            system: {name: summary(one) for name, one in figures.items() if one} for system, figures in systems.items()
        },
    }
    options.output.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(report, ensure_ascii=False, indent=1) + "\n"), (".md", table(report))):
        (options.output / f"kernel-{report['date']}{suffix}").write_text(text)
    print(table(report))


if __name__ == "__main__":
    main()
