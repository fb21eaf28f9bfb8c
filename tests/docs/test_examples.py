"""The Python blocks of the documents run, each page from top to bottom in one namespace, in an empty directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

ROOT = Path(__file__).parents[2]
SYBIL = Sybil(parsers=[PythonCodeBlockParser()])
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    if "```python" in path.read_text()
}


def test_the_pages_that_need_examples_have_them() -> None:
    assert {"README.md", "docs/quickstart.md", "docs/sdk.md", "docs/agents.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_python(page: str) -> None:
    for example in SYBIL.parse(PAGES[page]).examples():
        compile(example.parsed, page, "exec")


@pytest.mark.engine
@pytest.mark.usefixtures("configured_daemon", "in_an_empty_directory")
@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page: str) -> None:
    for example in SYBIL.parse(PAGES[page]).examples():
        example.evaluate()
