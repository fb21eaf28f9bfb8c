"""The package as a whole: what it exports, what it costs to import, and that its blocking half is current."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import cellbox

ROOT = Path(__file__).parents[3]


def run(code: str) -> dict[str, float]:
    script = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); {code}"
    return json.loads(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout)


def test_every_public_name_is_there() -> None:
    for name in cellbox.__all__:
        assert getattr(cellbox, name) is not None
    with pytest.raises(AttributeError):
        _ = cellbox.Nothing  # pyright: ignore


def test_import_is_small() -> None:
    code = (
        "import json, time; s = time.process_time(); import cellbox; s = time.process_time() - s;"
        "cellbox.Sandbox; cellbox.AsyncSandbox; print(json.dumps({'s': s, 'bad': sum(m in sys.modules for m in "
        "('starlette', 'uvicorn', 'sqlite3', 'httpx2', 'httpcore2', 'asyncio', 'cellbox.control'))}))"
    )
    found = [run(code) for _ in range(3)]
    assert found[0]["bad"] == 0
    assert min(one["s"] for one in found) < 0.06


def test_blocking_half_is_current() -> None:
    check = [sys.executable, ROOT / "tools/unasync.py", "--check"]
    assert subprocess.run(check, capture_output=True, text=True).stdout == ""


def test_generated_code_keeps_its_line_numbers() -> None:
    from cellbox.client._async import _sandbox as source
    from cellbox.client._sync import _sandbox as generated

    lines = inspect.getsourcelines(source.AsyncSandbox.exec)[1]
    assert inspect.getsourcelines(generated.Sandbox.exec)[1] == lines
