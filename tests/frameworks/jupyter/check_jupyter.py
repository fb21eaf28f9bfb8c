"""Jupyter: the exported notebook is valid, runs again with `jupyter execute` in a fresh sandbox, and replays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import cellbox.integrations
from cellbox import Sandbox

KERNELSPEC = Path(cellbox.integrations.__file__).parent / "kernelspec"


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Sandbox.create(ttl_seconds=300) as sandbox:
        sandbox.run_code("x = 20\nx + 1")
        sandbox.run_code("print('here')\nimport matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()")
        sandbox.run_code("1 / 0")
        sandbox.exec("echo made > made.txt; echo done; exit 4")
        sandbox.run_code("open('made.txt').read()")
        sandbox.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2]})")
        journal = sandbox.journal()
    return journal.save(tmp_path_factory.mktemp("notebook") / "run.ipynb")


def test_the_notebook_is_valid(notebook: Path) -> None:
    document = nbformat.read(notebook, as_version=nbformat.NO_CONVERT)
    nbformat.validate(document)
    assert [cell.cell_type for cell in document.cells] == ["markdown"] + ["code"] * 6


def test_jupyter_execute_runs_it_again_in_a_fresh_sandbox(notebook: Path, tmp_path: Path) -> None:
    shutil.copytree(KERNELSPEC, tmp_path / "share/kernels/cellbox")
    folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "JUPYTER_PATH": str(tmp_path / "share"),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    output = tmp_path / "again.ipynb"
    subprocess.run(
        [folder / "jupyter", "execute", "--timeout=90", f"--output={output}", notebook],
        env=environment, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    first, again = (json.loads(path.read_text())["cells"][1:] for path in (notebook, output))
    kinds = [
        [sorted(output["output_type"] for output in cell["outputs"]) for cell in cells] for cells in (first, again)
    ]
    assert kinds[0] == kinds[1]
    outputs = [output for cell in again for output in cell["outputs"] if output["output_type"] == "execute_result"]
    assert ["".join(output["data"]["text/plain"]) for output in outputs[:2]] == ["21", "'made\\n'"]
    # The kernel's end was its sandbox's end.
    assert not [sandbox for sandbox in Sandbox.list() if sandbox.metadata.get("made_by") == "jupyter"]
    replayed = subprocess.run(
        [sys.executable, "-m", "cellbox.cli", "replay", output], capture_output=True, text=True, check=False
    )
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
