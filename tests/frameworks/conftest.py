"""What the checks of every framework share. It runs in each framework's environment, so it imports none of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def example() -> Callable[[str], ModuleType]:
    """Imports a program of `examples/` by name."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def run_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs the Python blocks of a page from top to bottom in one namespace, in an empty directory."""
    from sybil import Sybil
    from sybil.parsers.markdown import PythonCodeBlockParser

    monkeypatch.chdir(tmp_path)

    def run(name: str) -> dict[str, Any]:
        document = Sybil(parsers=[PythonCodeBlockParser()]).parse(ROOT / "docs" / "integrations" / name)
        for block in document.examples():
            block.evaluate()
        return document.namespace

    return run
