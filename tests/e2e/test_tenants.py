"""Two owners on one daemon: what belongs to one does not exist for the other."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import msgspec
import pytest

import cellbox
from cellbox import errors

from .conftest import Daemon


@pytest.fixture(scope="module")
def stranger(daemon: Daemon, client: cellbox.Client) -> Iterator[cellbox.Client]:
    token = client.tokens.create("stranger", owner="stranger")
    with daemon.client(token.token) as other:
        yield other


ATTEMPTS: list[Callable[[cellbox.Sandbox], object]] = [
    lambda box: box.refresh(),
    lambda box: box.exec("id"),
    lambda box: list(box.exec_stream("id")),
    lambda box: box.create_code_context(),
    lambda box: box.filesystem.read("/etc/hostname"),
    lambda box: box.filesystem.write("/tmp/x", b"x"),
    lambda box: box.filesystem.list("/"),
    lambda box: box.filesystem.remove("/tmp/x"),
    lambda box: box.lifecycle(),
    lambda box: box.set_ttl(5),
    lambda box: box.update_metadata({"mine": "now"}),
    lambda box: box.usage(),
    lambda box: box.logs(),
]


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_foreign_sandbox_is_as_absent(
    sandbox: cellbox.Sandbox, stranger: cellbox.Client, attempt: Callable[[cellbox.Sandbox], object]
) -> None:
    foreign = cellbox.Sandbox(stranger._connection, sandbox.info)
    with pytest.raises(errors.NotFoundError) as refused:
        attempt(foreign)
    absent = cellbox.Sandbox(stranger._connection, msgspec.structs.replace(sandbox.info, id=str(uuid.uuid4())))
    with pytest.raises(errors.NotFoundError) as missing:
        attempt(absent)
    assert type(refused.value) is type(missing.value)
    assert str(refused.value).replace(sandbox.id, "ID") == str(missing.value).replace(absent.id, "ID")


def test_a_foreign_sandbox_is_neither_listed_nor_killed(sandbox: cellbox.Sandbox, stranger: cellbox.Client) -> None:
    assert sandbox.id not in [row.id for row in stranger.sandboxes.list()]
    cellbox.Sandbox(stranger._connection, sandbox.info).kill()  # as for one that is gone already: no error, no effect
    assert sandbox.exec("echo alive").stdout == "alive\n"


def test_admin_work_is_not_for_everyone(stranger: cellbox.Client) -> None:
    with pytest.raises(errors.PermissionDeniedError):
        stranger.templates.delete("base")
    with pytest.raises(errors.PermissionDeniedError):
        stranger.tokens.create("more", is_admin=True)
    assert all(token.owner == "stranger" for token in stranger.tokens.list())
