"""A user's own template, from a recipe folder to a running sandbox."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellbox
from cellbox import errors

RECIPE = """
name = "e2e-greeter"
description = "Says hello."
base = "base"
start_command = "echo started in $PWD; while :; do sleep 1; done"
run = ["echo built > /opt/built"]

[env]
GREETING = "hello there"

[defaults]
memory_mb = 300
disk_mb = 128
"""


@pytest.fixture(scope="module")
def template(client: cellbox.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "files/opt/app").mkdir(parents=True)
    (folder / "files/opt/app/.hidden").write_text("kept\n")
    client.templates.build(folder)
    yield "e2e-greeter"
    client.templates.delete("e2e-greeter")


def test_a_recipe_becomes_a_sandbox(client: cellbox.Client, template: str) -> None:
    assert template in [known.name for known in client.templates.list()]
    with cellbox.Sandbox.create(template, client=client) as box:
        assert (box.info.memory_mb, box.info.disk_mb) == (300, 128)
        assert box.exec("echo $GREETING; cat /opt/built /opt/app/.hidden").stdout == "hello there\nbuilt\nkept\n"
        deadline = time.monotonic() + 10
        while "started in" not in box.logs():
            assert time.monotonic() < deadline, "the start command's output is in the log"
            time.sleep(0.05)


def test_a_failed_step_is_a_failed_build(client: cellbox.Client, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text('name = "e2e-bad"\nbase = "base"\nrun = ["echo before; exit 3"]\n')
    with pytest.raises(errors.TemplateBuildError, match="3"):
        client.templates.build(tmp_path)
    with pytest.raises(errors.UnknownTemplateError):
        cellbox.Sandbox.create("e2e-bad", client=client)


@pytest.mark.parametrize(
    "recipe",
    [
        'name = "x"\nbase = "base"\nunknown = 1\n',
        'name = "../x"\nbase = "base"\n',
        'name = "x"\nbase = "nope"\n',
        "= =",
    ],
)
def test_a_bad_recipe_is_refused(client: cellbox.Client, tmp_path: Path, recipe: str) -> None:
    (tmp_path / "recipe.toml").write_text(recipe)
    with pytest.raises((errors.InvalidRequestError, errors.TemplateBuildError)):
        client.templates.build(tmp_path)
