"""Clients and sandboxes of the session's daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import cellbox

from ..conftest import Daemon, traces_of

__all__ = ["Daemon", "traces_of"]


@pytest.fixture(scope="session")
def client(daemon: Daemon) -> Iterator[cellbox.Client]:
    with daemon.client() as shared:
        yield shared


@pytest.fixture(scope="module")
def sandbox(client: cellbox.Client) -> Iterator[cellbox.Sandbox]:
    """A sandbox that the tests of one module share; they must not harm it."""
    with cellbox.Sandbox.create(ttl_seconds=600, client=client) as shared:
        yield shared


@pytest.fixture
def new_sandbox(client: cellbox.Client) -> Iterator[Callable[..., cellbox.Sandbox]]:
    """Makes sandboxes that are killed at the end of the test."""
    made: list[cellbox.Sandbox] = []

    def create(**options: object) -> cellbox.Sandbox:
        options.setdefault("ttl_seconds", 300)
        made.append(cellbox.Sandbox.create(client=client, **options))  # pyright: ignore[reportArgumentType]
        return made[-1]

    yield create
    for one in made:
        one.kill()
