"""What an agent does with Cellbox, without the agent: a real file in, cells with state, a mistake mended, a report out.

Run it with `make demo`. It builds the template if it is missing, which takes minutes the first time only. Everything
it prints about the data was computed in the sandbox; the chart and the report end up in `demo-output/`.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import re
import sys
import time
from pathlib import Path

from cellbox import Client, Execution, Sandbox

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
answer = (f"The warmest day was {daily.idxmax():%d %B} with a mean of {daily.max():.1f} °C, the coldest {daily.idxmin():%d %B} "
          f"with {daily.min():.1f} °C. On average it is warmest at {by_hour.idxmax()}:00 and coldest at {by_hour.idxmin()}:00.")
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
def daemon() -> Iterator[Client]:
    """The configured daemon; else one of our own on a private socket, stopped at the end. Templates stay for next time."""
    if os.environ.get("CELLBOX_API_URL") or os.environ.get("PANDASTACK_API"):
        with Client() as client:
            yield client
        return
    with tempfile.TemporaryDirectory(prefix="cellbox-demo-") as folder:
        address, log = f"unix:{folder}/daemon.sock", Path(folder, "daemon.log")
        command = [sys.executable, "-m", "cellbox.cli", "serve", "--listen", address, "--data-dir", f"{folder}/data"]
        environment = {"CELLBOX_TEMPLATES_DIR": str(template_directory()), **os.environ}
        with log.open("wb") as output:
            server = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            with Client(api_url=address) as client:
                while True:
                    try:
                        say(f"daemon {client.version().version} is up on a private socket")
                        break
                    except DaemonUnavailableError:
                        if server.poll() is not None:
                            sys.exit(f"The daemon did not start:\n{log.read_text()}\n`cellbox doctor` tells why.")
                        time.sleep(0.05)
                yield client
        finally:
            server.terminate()
            server.wait(timeout=60)
            say("daemon stopped, its sandboxes and its data directory are gone")
