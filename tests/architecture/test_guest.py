# ruff: noqa: E501
"""What runs inside the sandbox needs nothing but Python's standard library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
KERNEL_ONLY = "kernel"
"""The package of the kernel process is the one place in the guest that may import IPython."""

MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for package in ("guest", "wire")
    for path in (SOURCE / "cellbox" / package).rglob("*.py")
    if path.name != "__main__.py" and KERNEL_ONLY not in path.relative_to(SOURCE / "cellbox" / package).parts
)

PROGRAM = """
import importlib, sys, types
sys.path.insert(0, {source!r})
root = types.ModuleType("cellbox"); root.__path__ = [{source!r} + "/cellbox"]; sys.modules["cellbox"] = root
importlib.import_module({module!r})
foreign = sorted(name for name in sys.modules if name.partition(".")[0] not in sys.stdlib_module_names | {{"cellbox", "__main__"}})
ours = sorted(name for name in sys.modules if name.startswith("cellbox.") and name.split(".")[1] not in ("guest", "wire", "_version"))
sys.exit(f"foreign: {{foreign}} ours: {{ours}}" if foreign or ours else 0)
"""


@pytest.mark.parametrize("module", MODULES)
def test_the_guest_is_standard_library_only(module: str) -> None:
    """`-I -S`: no site packages, no environment, as in a template that has no Python packages at all."""
    program = PROGRAM.format(source=str(SOURCE), module=module)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
