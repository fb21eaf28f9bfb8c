"""Every command, setting and limit that exists is explained, every link leads somewhere, every promise names a test."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cellbox.cli.exits import Exit
from cellbox.cli.main import COMMANDS
from cellbox.control.settings import Settings
from cellbox.templates.recipe import RecipeFile
from cellbox.templates.templates import builtin_names

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "benchmarks" / "README.md"])


def page(name: str) -> str:
    return (ROOT / name).read_text()


@pytest.mark.parametrize("command", [name for commands in COMMANDS.values() for name in commands])
def test_every_command_has_a_heading(command: str) -> None:
    assert f"### `cellbox {command}`" in page("docs/cli.md")


@pytest.mark.parametrize("code", Exit)
def test_every_exit_code_is_in_the_table(code: Exit) -> None:
    assert f"| {int(code)} |" in page("docs/cli.md")


@pytest.mark.parametrize("field", msgspec.structs.fields(Settings), ids=lambda field: field.name)
def test_every_setting_has_a_heading(field: msgspec.structs.FieldInfo) -> None:
    assert f"### `{field.name}`" in page("docs/settings.md")


@pytest.mark.parametrize("key", [field.name for field in msgspec.structs.fields(RecipeFile)])
def test_every_key_of_a_recipe_is_explained(key: str) -> None:
    assert f"`{key}`" in page("docs/templates.md")


@pytest.mark.parametrize("name", builtin_names())
def test_every_template_of_ours_is_listed(name: str) -> None:
    assert f"| `{name}` |" in page("docs/templates.md")


def test_references_are_current() -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "generate_reference.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())
    assert not [target for target in targets if not (path.parent / target).exists()]


PROMISED = sorted(set(re.findall(r"`(tests/[\w/-]+\.py)(?:::(\w+))?`", page("SPECIFICATION.md"))))


@pytest.mark.parametrize(("file", "name"), PROMISED)
def test_every_promise_names_a_test_that_exists(file: str, name: str) -> None:
    assert (ROOT / file).exists(), file
    assert not name or f"def {name}(" in (ROOT / file).read_text()


def test_every_promise_names_a_test_or_says_that_there_is_none() -> None:
    rows = [line for line in page("SPECIFICATION.md").splitlines() if re.match(r"\| [A-Z]\d+ \|", line)]
    assert len(rows) > 20
    assert not [row for row in rows if "`tests/" not in row and "no test" not in row]
