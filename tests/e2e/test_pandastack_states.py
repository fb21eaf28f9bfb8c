"""Saving, forking and resting, driven by the unmodified `pandastack` client."""

from __future__ import annotations

from collections.abc import Iterator

import pandastack
import pytest
from pandastack.client import Client
from pandastack.exceptions import NotFoundError, PandastackError

from .conftest import Daemon


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> Client:
    return Client(api_key=daemon.admin_key, api_url=daemon.url)


@pytest.fixture(scope="module")
def panda(client: Client) -> Iterator[pandastack.Sandbox]:
    sandbox = client.sandboxes.create(template="base", ttl_seconds=600)
    sandbox.exec("mkdir -p /work && echo prepared > /work/state")
    yield sandbox
    sandbox.kill()


def state(sandbox: pandastack.Sandbox) -> str:
    return sandbox.exec("cat /work/state").stdout.strip()


def test_snapshot_and_create_from_it(panda: pandastack.Sandbox, client: Client) -> None:
    snapshot = panda.snapshot()
    assert [one["id"] for one in client.snapshots.list(sandbox_id=panda.id)] == [snapshot]
    assert client.snapshots.get(snapshot)["template"] == panda.template
    restored = client.sandboxes.create(from_snapshot=snapshot, ttl_seconds=300)  # sends its default template, too
    assert (state(restored), restored.template) == ("prepared", panda.template)
    restored.kill()
    client.snapshots.delete(snapshot)
    with pytest.raises(NotFoundError):
        client.snapshots.get(snapshot)


def test_fork_fork_tree_and_promote(panda: pandastack.Sandbox) -> None:
    child = panda.fork(metadata={"branch": "a"})
    assert child.id != panda.id
    assert (child.metadata["branch"], state(child)) == ("a", "prepared")
    child.kill()
    tree = panda.fork_tree(2, metadata={"branch": "b"})
    assert [state(one) for one in tree] == ["prepared"] * 2
    tree[1].exec("echo changed > /work/state")
    promoted = tree[1].promote(cleanup_siblings=True)
    assert promoted["winner"] == tree[1].id
    assert promoted["deleted"] == [tree[0].id]
    assert promoted["failures"] == {}
    assert [state(tree[1]), state(panda)] == ["changed", "prepared"]
    tree[1].kill()


def test_explore_keeps_the_best(panda: pandastack.Sandbox) -> None:
    result = panda.explore(
        ["echo 1 > /work/score", "echo 2 > /work/score"],
        score_fn=lambda sandbox, _outcome: float(sandbox.exec("cat /work/score").stdout),
    )
    assert result.winner is not None
    assert result.winner.exec("cat /work/score /work/state").stdout == "2\nprepared\n"
    result.winner.kill()


def test_pause_resume_hibernate_wake(panda: pandastack.Sandbox) -> None:
    panda.pause()
    panda.pause()
    with pytest.raises(PandastackError, match="paused"):
        panda.exec("true")
    panda.resume()
    panda.resume()
    assert state(panda) == "prepared"
    panda.hibernate()
    panda.hibernate()
    panda.wake()
    panda.wake()
    assert state(panda) == "prepared"
    panda.hibernate()
    assert state(panda) == "prepared"  # woken by the request
