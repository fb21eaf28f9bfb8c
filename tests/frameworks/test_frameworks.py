"""Every framework's checks, each in the framework's own environment, against the real daemon.

The checks are `check_*.py` in the folders beside this file: conformance suites of the frameworks, adapters with the
frameworks' own scripted models, the pages of `docs/integrations`, the programs of `examples`. All run at once, since
they mostly wait for their sandboxes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Daemon

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SECONDS = 600


def _tool() -> Any:
    spec = spec_from_file_location("frameworks", ROOT / "tools" / "frameworks.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FRAMEWORKS = _tool()


@dataclass
class Run:
    process: subprocess.Popen[bytes]
    output: Path


@pytest.fixture(scope="module")
def runs(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    folder = tmp_path_factory.mktemp("frameworks")
    started = {name: start(name, daemon, folder) for name in FRAMEWORKS.NAMES}
    yield started
    for run in started.values():
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()


def start(name: str, daemon: Daemon, folder: Path) -> Run:
    python = FRAMEWORKS.ensure(name)  # made by `make test` already; quick then
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "OPENAI_"))},
        "CELLBOX_API_URL": daemon.url,
        "CELLBOX_API_KEY": daemon.admin_key,
        "LANGSMITH_TRACING": "false",
    }
    output = folder / f"{name}.txt"
    with output.open("wb") as log:
        process = subprocess.Popen(
            [
                python, "-m", "pytest", HERE / name, "--config-file", HERE / "checks.ini", "--rootdir", ROOT,
                "--confcutdir", HERE, "--basetemp", folder / name, "-ra", "--tb=short",
            ],
            env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    return Run(process, output)


@pytest.mark.engine
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("name", FRAMEWORKS.NAMES)
def test_checks_pass(name: str, runs: dict[str, Run]) -> None:
    code = runs[name].process.wait(SECONDS)
    output = runs[name].output.read_text(errors="replace")
    sys.stdout.write(output)
    assert code == 0, output[-6000:]


def test_every_framework_has_checks() -> None:
    folders = {path.parent.name for path in HERE.glob("*/requirements.in")}
    assert folders == set(FRAMEWORKS.NAMES), "run `make lock`"
    assert all(list((HERE / name).glob("check_*.py")) for name in folders)
