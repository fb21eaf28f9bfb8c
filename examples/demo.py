"""What an agent does with Cellbox, without the agent: a real file in, cells with state, a mistake mended, a report out.

Run it with `make demo`. It builds the template if it is missing, which takes minutes the first time only. Everything
it prints about the data was computed in the sandbox; the chart and the report end up in `demo-output/`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from cellbox import CellboxError, Client, CodeContext, DaemonUnavailableError, Execution, Sandbox

TEMPLATE = "code-interpreter"
OUTPUT = Path(os.environ.get("CELLBOX_DEMO_OUTPUT", "demo-output"))
SOURCE = "hourly temperatures in Seattle, 2010: NOAA data (public domain), from the vega_datasets package (MIT)"

LOAD = """
import pandas as pd
df = pd.read_csv("/workspace/seattle-temps.csv", parse_dates=["date"])
print(f"{len(df):,} rows from {df.date.min():%d %b %Y} to {df.date.max():%d %b %Y}, {df.temp.isna().sum()} missing")
"""
GROUP = """
df["celsius"] = (df.temp - 32) * 5 / 9
monthly = df.groupby(df.date.dt.month_name(), sort=False).celsius.agg(["min", "mean", "max"]).round(1)
monthly
"""
PLOT = """
import matplotlib.pyplot as plt
fig, ax = plt.subplots(figsize=(9, 4.5))
ax.fill_between(range(12), monthly["min"], monthly["max"], alpha=0.25, label="coldest to warmest hour")
ax.plot(range(12), monthly["mean"], marker="o", label="mean")
ax.set_xticks(range(12), [name[:3] for name in monthly.index])
ax.set(title="Seattle 2010: temperature by month", ylabel="°C")
ax.legend()
plt.show()
"""
MISTAKE = 'daily = df.set_index("date").temperature.resample("D").mean()'
MENDED = """
daily = df.set_index("date").celsius.resample("D").mean()
by_hour = df.groupby(df.date.dt.hour).celsius.mean()
answer = (
    f"The warmest day was {daily.idxmax():%d %B} with a mean of {daily.max():.1f} °C, "
    f"the coldest {daily.idxmin():%d %B} with {daily.min():.1f} °C. "
    f"On average it is warmest at {by_hour.idxmax()}:00 and coldest at {by_hour.idxmin()}:00."
)
answer
"""
REPORT = """
from pathlib import Path
lines = ["# Temperatures in Seattle, 2010", "", answer, "", "| month | min | mean | max |", "|---|---|---|---|"]
lines += [f"| {month} | {row['min']} | {row['mean']} | {row['max']} |" for month, row in monthly.iterrows()]
Path("/workspace/report.md").write_text("\\n".join(lines) + "\\n")
"""

start = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - start:6.2f} s] {text}", flush=True)


def dataset() -> Path:
    """The file in the installed package, found without importing it."""
    spec = importlib.util.find_spec("vega_datasets")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("The demo's data comes with a package: pip install --no-deps vega_datasets")
    return Path(spec.submodule_search_locations[0]) / "_data" / "seattle-temps.csv"


def visible(text: str) -> str:
    """What comes out of a sandbox is not to be trusted: nothing in it may control the terminal."""
    return re.sub(r"[^\n\t\x20-\x7e\xa0-\u2027\u202f-\u2065\u2070-\uffff]", "", text)


def indented(text: str) -> str:
    return "\n".join(f"             {line}" for line in visible(text).splitlines())


@contextmanager
def connected() -> Generator[Client]:
    """The configured daemon; else one of our own on a private socket, which is stopped at the end."""
    if os.environ.get("CELLBOX_API_URL") or os.environ.get("PANDASTACK_API"):
        with Client() as client:
            yield client
        return
    with tempfile.TemporaryDirectory(prefix="cellbox-demo-") as folder:
        address, log = f"unix:{folder}/daemon.sock", Path(folder, "daemon.log")
        with log.open("wb") as output:
            command = [sys.executable, "-m", "cellbox.cli", "serve", "--listen", address]
            daemon = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            with Client(api_url=address) as client:
                is_ours = wait_for(client, daemon, log)
                if is_ours:
                    yield client
            if not is_ours:
                say("a daemon of yours is running already: using that one")
                with Client() as client:
                    yield client
        finally:
            if daemon.poll() is None:
                daemon.terminate()
                daemon.wait(timeout=60)
                say("daemon stopped, nothing of it runs on; the template is kept for the next time")


def wait_for(client: Client, daemon: subprocess.Popen[bytes], log: Path) -> bool:
    """Wait until the daemon answers; False when another one holds the data directory."""
    while True:
        try:
            say(f"daemon {client.version().version} is up on a private socket")
            return True
        except DaemonUnavailableError:
            if daemon.poll() is not None and "another daemon" in log.read_text():
                return False
            if daemon.poll() is not None:
                sys.exit(f"The daemon did not start; `cellbox doctor` may tell why.\n{log.read_text()}")
            time.sleep(0.05)


def check_engine(client: Client) -> None:
    found = client.capabilities()
    limits = ", ".join(name for name, is_on in found.enforced.items() if is_on) or "nothing"
    say(f"engine: {found.engine} {found.engine_version}, which enforces here: {limits}")
    for advisory in found.advisories:
        say(f"  known advisory: {advisory.partition(':')[0]}; `cellbox doctor` says more")
    for problem in found.problems:
        say(f"  {problem.summary} → {problem.fix}")
    if not found.usable:
        sys.exit(
            "No sandbox can be created here: `cellbox doctor --install` fetches the engine and tells what is missing."
        )


def build_template(client: Client) -> None:
    if client.templates.get(TEMPLATE).is_built:
        return
    say(f"template {TEMPLATE}: building it, this once; a few minutes")
    with tempfile.TemporaryDirectory() as folder:
        # What a recipe is based on is built first, and that is all that is wanted here.
        Path(folder, "recipe.toml").write_text(f'name = "demo-only"\nbase = "{TEMPLATE}"\n')
        client.templates.build(folder, replace=True, on_line=lambda line: say(f"  {visible(line)}"))
    client.templates.delete("demo-only")


def run(context: CodeContext, title: str, code: str) -> Execution:
    cell = context.run_code(code.strip(), timeout_seconds=60)
    say(f"cell [{cell.execution_count}] {title}: {cell.duration_ms:.0f} ms")
    return cell


def main() -> None:
    data = dataset()
    with connected() as client:
        check_engine(client)
        build_template(client)
        began = time.monotonic()
        with Sandbox.create(TEMPLATE, ttl_seconds=600, metadata={"purpose": "demo"}, client=client) as sandbox:
            create_ms = (time.monotonic() - began) * 1000
            boot = f"{sandbox.boot_mode}, {sandbox.boot_ms:.0f} ms in the daemon"
            say(f"sandbox {sandbox.id} is ready after {create_ms:.0f} ms ({boot})")
            work(sandbox, data, create_ms)
        say("sandbox killed, nothing of it is left")


def work(sandbox: Sandbox, data: Path, create_ms: float) -> None:
    written = sandbox.filesystem.upload(data, "/workspace/seattle-temps.csv")
    say(f"uploaded {written.bytes:,} bytes: {SOURCE}")
    context = sandbox.create_code_context()

    cells = [run(context, "load the file", LOAD)]
    print(indented(cells[0].stdout))
    cells.append(run(context, "group by month", GROUP))
    table = cells[-1].results[0]
    print(indented(table.text or ""))
    say(f"  the same as an HTML table for a web page: {len(table.html or ''):,} characters")

    cells.append(run(context, "plot", PLOT))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    chart = next(result for result in cells[-1].results if result.png).save(OUTPUT / "temperatures.png")
    say(f"  chart saved: {chart} ({chart.stat().st_size:,} bytes)")

    cells.append(run(context, "a mistake, as agents make them", MISTAKE))
    print(indented("\n".join((cells[-1].error or "no error?").splitlines()[-1:])))
    say("  the traceback came back as text, the kernel and its variables live on")
    cells.append(run(context, "mended", MENDED))
    answer = sandbox_text(cells[-1])

    cells.append(run(context, "write a report", REPORT))
    report = OUTPUT / "report.md"
    sandbox.filesystem.download("/workspace/report.md", report)
    say(f"  report read back: {report} ({len(report.read_text().splitlines())} lines)")

    total = sum(cell.duration_ms for cell in cells)
    print(f"\n  Answer   {answer}\n  Chart    {chart}\n  Report   {report}")
    fastest = min(cell.duration_ms for cell in cells)
    print(f"  Times    create {create_ms:.0f} ms; {len(cells)} cells {total:.0f} ms, the fastest {fastest:.1f} ms\n")


def sandbox_text(cell: Execution) -> str:
    cell.raise_for_error()
    return visible(cell.text or "").strip("'\"")


if __name__ == "__main__":
    try:
        main()
    except CellboxError as error:
        sys.exit(f"{type(error).__name__}: {error}\n`cellbox doctor` may tell why.")
