"""Makes templates ready in a data directory, with visible progress: what `make test` does before the tests.

    python tools/build_templates.py NAME…

Data directory and engine as for the daemon (`CELLBOX_DATA_DIR`, `CELLBOX_ENGINE`). Prints the path of the engine's
binary last, if a private one is used, so that daemons of tests with data directories of their own can share it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from cellbox.control.settings import default_data_dir
from cellbox.engines.registry import install_engine, load_engine, prepare_process
from cellbox.errors import APIError
from cellbox.templates.events import BuildDone, BuildEvent, StepDone, StepFailed, StepStarted
from cellbox.templates.templates import Templates, builtin_names

HEARTBEAT_SECONDS = 10.0


async def main() -> int:
    names = sys.argv[1:] or builtin_names()
    data_dir = Path(os.environ.get("CELLBOX_TEMPLATES_DIR") or os.environ.get("CELLBOX_DATA_DIR") or default_data_dir())
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine_name = os.environ.get("CELLBOX_ENGINE", "gvisor")
    # The engine's binary goes where the daemon looks for it; the machines of this process stay apart from a daemon's.
    version = await install_engine(engine_name, data_dir / "engine", lambda line: print(f"  {line}", flush=True))
    print(f"engine {engine_name} {version or ''}", flush=True)
    private = data_dir / "engine/bin/runsc"
    if private.exists():
        os.environ.setdefault("CELLBOX_RUNSC", str(private))
    with tempfile.TemporaryDirectory(prefix="cellbox-build-") as state:
        engine = load_engine(engine_name, Path(state))
        await engine.start()
        try:
            templates, progress = Templates(data_dir, engine), Progress()
            heartbeat = asyncio.create_task(progress.keep_telling())
            for name in names:
                async for event in templates.ensure(name):
                    progress.show(event)
            heartbeat.cancel()
        finally:
            await engine.aclose()
    return 0


class Progress:
    """What is being done, told at each change and while nothing changes."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], float] = {}

    def show(self, event: BuildEvent) -> None:
        match event:
            case StepStarted():
                self._running[event.template, event.step] = time.monotonic()
                print(f"  {event.template}: {event.step} …", flush=True)
            case StepDone():
                self._running.pop((event.template, event.step), None)
                print(f"  {event.template}: {event.step}: {event.seconds:.1f} s", flush=True)
            case StepFailed():
                print(f"{event.log_tail}\n  {event.template}: {event.step}: FAILED, {event.reason}", flush=True)
            case BuildDone():
                what = "built" if event.was_built else "is there"
                print(f"template {event.template} {what} ({event.seconds:.1f} s)", flush=True)
            case _:
                pass

    async def keep_telling(self) -> None:
        """Name the steps that have been running for long, again and again until cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for (template, step), started in self._running.items():
                seconds = time.monotonic() - started
                if seconds >= HEARTBEAT_SECONDS:
                    print(f"  {template}: {step} … {seconds:.0f} s so far", flush=True)


if __name__ == "__main__":
    try:
        prepare_process(os.environ.get("CELLBOX_ENGINE", "gvisor"))
        sys.exit(asyncio.run(main()))
    except APIError as error:
        sys.exit(f"error: {error}")
