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
DATA = "seattle-weather.csv"
SOURCE = "four years of weather in Seattle, day by day; NOAA (public domain), from the vega_datasets package"

LOAD = """
import pandas as pd
df = pd.read_csv("/workspace/seattle-weather.csv", parse_dates=["date"])
missing = df.isna().sum().sum()
print(f"{len(df):,} days from {df.date.min():%d %b %Y} to {df.date.max():%d %b %Y}, {missing} values missing")
"""
GROUP = """
df["wet"] = df.precipitation > 0
by_month = df.groupby(df.date.dt.month_name().str[:3], sort=False)
monthly = by_month.agg(coldest=("temp_min", "min"), warmest=("temp_max", "max"), wet_days=("wet", "mean"))
monthly["wet_days"] = (monthly.wet_days * 100).round().astype(int)
monthly
"""
PLOT = """
import matplotlib.pyplot as plt
fig, (top, bottom) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, height_ratios=[2, 1])
low, high = by_month.temp_min.mean(), by_month.temp_max.mean()
top.fill_between(monthly.index, low, high, alpha=0.3, label="mean low to mean high")
top.plot(monthly.index, monthly.warmest, "^", label="warmest day")
top.plot(monthly.index, monthly.coldest, "v", label="coldest night")
top.set(title="Seattle, 2012 to 2015", ylabel="°C", ylim=(-15, 40))
top.legend(loc="lower center", ncols=3)
bottom.bar(monthly.index, monthly.wet_days)
bottom.set(ylabel="wet days, %", ylim=(0, 100))
plt.show()
"""
MISTAKE = "driest = df.rain.idxmin()"
MENDED = """
wet = df.set_index("date").wet
dry_spells = (~wet).groupby(wet.cumsum()).sum()
longest = dry_spells.max()
last_wet_day = wet[wet.cumsum() == dry_spells.idxmax()].index[0]
answer = (
    f"No: {wet.mean():.0%} of the days were wet, from {monthly.wet_days.max()}% in {monthly.wet_days.idxmax()} "
    f"down to {monthly.wet_days.min()}% in {monthly.wet_days.idxmin()}. "
    f"The longest dry spell had {longest} days, after {last_wet_day:%d %B %Y}."
)
answer
"""
REPORT = """
from pathlib import Path
lines = ["# Does it always rain in Seattle?", "", answer, "", monthly.to_markdown()]
Path("/workspace/report.md").write_text("\\n".join(lines) + "\\n")
"""

start = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - start:6.2f} s] {text}", flush=True)


def dataset() -> Path:
    """The file in the installed package, found without importing it."""
    spec = importlib.util.find_spec("vega_datasets")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("The demo's data comes with a package: pip install --no-deps -r requirements-demo.lock")
    return Path(spec.submodule_search_locations[0]) / "_data" / DATA


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
    if not client.templates.get(TEMPLATE).is_built:
        say(f"template {TEMPLATE} is built now, this once; that takes minutes")
        client.templates.ensure(TEMPLATE, on_line=lambda line: say(f"  {visible(line)}"))


def run(context: CodeContext, title: str, code: str) -> Execution:
    cell = context.run_code(code.strip(), timeout_seconds=60)
    say(f"cell [{cell.execution_count}] {title}: {cell.duration_ms:.0f} ms")
    return cell


def main() -> None:
    data = dataset()
    print("The question: does it always rain in Seattle? An agent's code answers it, in a sandbox.\n", flush=True)
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
    written = sandbox.filesystem.upload(data, f"/workspace/{DATA}")
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
    chart = next(result for result in cells[-1].results if result.png).save(OUTPUT / "weather.png")
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
