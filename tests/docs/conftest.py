"""A daemon for the examples in the documents; they skip with the reason where there is none."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellbox import CellboxError, Client
from cellbox.client import _local


@pytest.fixture
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def usable_daemon() -> Iterator[None]:
    """The daemon that the environment names, else a private one that ends with the tests."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="cellbox-") as folder:
        patch.setenv("CELLBOX_RUNTIME_DIR", folder)
        try:
            with Client() as client:
                _require_templates(client)
            yield
        finally:
            while _local._children:
                daemon = _local._children.pop()
                daemon.terminate()
                daemon.wait(60)


def _require_templates(client: Client) -> None:
    try:
        found = client.capabilities()
        is_built = client.templates.get("code-interpreter").is_built
    except CellboxError as error:
        pytest.skip(f"no daemon: {error}")
    if not found.usable:
        pytest.skip("the engine is unfit on this host; `cellbox doctor` says why")
    if not is_built:
        pytest.skip("run `cellbox template build code-interpreter` first")
