"""A daemon for the examples in the documents; they skip with the reason where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def usable_daemon() -> Iterator[None]:
    """The daemon that the environment names, else the private one."""
    from cellbox import CellboxError, Client

    with Client() as client:
        try:
            found = client.capabilities()
            is_built = client.templates.get("code-interpreter").is_built
        except CellboxError as error:
            pytest.skip(f"no daemon: {error}")
        if not found.usable:
            pytest.skip("the engine is unfit on this host; `cellbox doctor` says why")
        if not is_built:
            pytest.skip("run `cellbox template build code-interpreter` first")
        yield
