"""What the examples in the documents find around them: a configured daemon, and an empty directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellbox.client import _default

from ..conftest import Daemon


@pytest.fixture
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def configured_daemon(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment names the daemon, and the client that is made of it ends with the test."""
    monkeypatch.setenv("CELLBOX_API_URL", daemon.url)
    monkeypatch.setenv("CELLBOX_API_KEY", daemon.admin_key)
    monkeypatch.setattr(_default, "_client", None)
    yield
    if _default._client is not None:
        _default._client.close()
