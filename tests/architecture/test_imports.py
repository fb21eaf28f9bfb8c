# ruff: noqa: E501
"""`import cellbox` is for scripts and agents: small, quick and without the server."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time

import pytest

import cellbox

SERVER_SIDE = ("cellbox.server", "cellbox.control", "cellbox.engines", "cellbox.store", "cellbox.templates",
               "cellbox.guest", "starlette", "uvicorn", "structlog", "prometheus_client", "sqlite3", "cyclopts")  # fmt: skip
BUDGET_SECONDS = 0.6
"""For the whole of `import cellbox` in a fresh interpreter, best of three. About 0.2 s on a quiet machine."""


def loaded_by(statement: str) -> set[str]:
    program = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_sdk_loads_nothing_of_the_server() -> None:
    loaded = loaded_by("import cellbox; cellbox.Sandbox; cellbox.AsyncSandbox")
    assert not {name for name in loaded if name in SERVER_SIDE or name.startswith(tuple(f"{n}." for n in SERVER_SIDE))}


def test_the_command_loads_neither_sdk_nor_server_for_its_help() -> None:
    loaded = loaded_by("import cellbox.cli.main")
    assert not {name for name in loaded if name.startswith(("httpx2", "cellbox.client", "cellbox.server", "starlette"))}


def test_import_stays_in_its_budget() -> None:
    best = min(import_seconds() for _ in range(3))
    assert best <= BUDGET_SECONDS


def import_seconds() -> float:
    bare, whole = elapsed("pass"), elapsed("import cellbox; cellbox.Sandbox")
    return whole - bare


def elapsed(statement: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def test_every_public_name_is_there_and_explained() -> None:
    assert len(cellbox.__all__) == len(set(cellbox.__all__))
    for name in cellbox.__all__:
        value = getattr(cellbox, name)
        if isinstance(value, type) or callable(value):
            assert value.__doc__, name


@pytest.mark.parametrize("name", ["cellbox.errors", "cellbox.protocol.operations", "cellbox.wire", "cellbox.cli.main"])
def test_entry_modules_import(name: str) -> None:
    assert importlib.import_module(name)
