# ruff: noqa: E501
"""The tree holds nothing of the machine it was written on, and what is generated is current."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = {".py", ".md", ".toml", ".txt", ".sh", ".json", ".sql", ".cfg", ".yml", ".yaml", ".ini", ""}
SKIPPED = {".git", ".venv", "demo-output", "dist", "build", ".ruff_cache", ".pytest_cache", ".hypothesis", "node_modules",
           ".import_linter_cache", "results"}  # fmt: skip
# Assembled, so that this file passes its own test.
FORBIDDEN = {
    "a developer's folder": re.compile(r"(?<![\w.\w])/(?:" + "|".join(["wo" + "rk/(?:main|shared)", "Use" + "rs/\\w", "home/(?!user)\\w+/"]) + ")"),
    "a registry's host": re.compile("|".join([r"files\.pythonhos" + r"ted", r"py" + r"pi\.org/simple", r"registry\.npm" + r"js", "arti" + "factory"])),
    "a private address": re.compile(r"\b(?:10|172\.(?:1[6-9]|2\d|3[01]))\.\d{1,3}\.\d{1,3}\.\d{1,3}:\d+"),
}  # fmt: skip


def texts() -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = (
        listed.stdout.splitlines() if listed.returncode == 0 else [str(p.relative_to(ROOT)) for p in ROOT.rglob("*")]
    )
    for name in names:
        path = ROOT / name
        if path.suffix in TEXT and not SKIPPED & set(path.parts) and path.is_file() and path.stat().st_size < 2_000_000:
            yield path


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_tree_tells_nothing_of_a_developers_machine(what: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {hit.group()}"
        for path in texts()
        if (hit := FORBIDDEN[what].search(path.read_text(errors="replace")))
    ]
    assert not found, f"{what}: {found}"


GENERATORS = [path for path in sorted((ROOT / "tools").glob("*.py")) if "--check" in path.read_text()]


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda path: path.name)
def test_generated_files_are_current(generator: Path) -> None:
    """Every generator in `tools/` that takes `--check` says whether what it wrote is what it would write now."""
    done = subprocess.run([sys.executable, generator, "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
