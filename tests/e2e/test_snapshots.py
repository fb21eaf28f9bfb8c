"""Snapshots and forks: all of a sandbox's state comes back, any number of times, and no two copies are the same one."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import cellbox
from cellbox import errors
from cellbox.cli.exits import Exit
from cellbox.cli.main import run

from ..security.test_uniqueness import DRAW
from .conftest import Daemon

PREPARE = """
import hashlib, os, random, sqlite3, subprocess, threading, time, uuid
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
frame = pd.DataFrame({'a': np.arange(1000)})
figure, axes = plt.subplots()
axes.plot([1, 2, 3])
data = os.urandom(8 << 20)
open('/workspace/data.bin', 'wb').write(data)
os.chmod('/workspace/data.bin', 0o640)
digest = hashlib.sha256(data).hexdigest()
handle = open('/workspace/data.bin', 'rb')
handle.seek(4096)
database = sqlite3.connect('/workspace/db.sqlite')
database.execute('create table t (x)')
database.commit()
database.execute('insert into t values (7)')  # a transaction that is still open
steps = 0
halt = threading.Event()
def count():
    global steps
    while not halt.wait(0.02):
        steps += 1
thread = threading.Thread(target=count, daemon=True)
thread.start()
child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
os.environ['MARK'] = 'kept'
begun = time.monotonic()
plt.close()  # of the display only
figure.number
"""
CHECK = """
before = steps
deadline = time.monotonic() + 20
while steps == before and time.monotonic() < deadline:
    time.sleep(0.02)
child.stdin.write(b'through a child\\n'); child.stdin.flush()
database.commit()
result = {
    'frame': int(frame.a.sum()),
    'figure': len(axes.lines),
    'digest': hashlib.sha256(open('/workspace/data.bin', 'rb').read()).hexdigest() == digest,
    'memory': hashlib.sha256(data).hexdigest() == digest,
    'mode': oct(os.stat('/workspace/data.bin').st_mode & 0o777),
    'offset': handle.tell(),
    'transaction': sqlite3.connect('/workspace/db.sqlite').execute('select x from t').fetchall(),
    'thread': steps > before,
    'child': child.stdout.readline(),
    'environment': os.environ['MARK'],
    'monotonic': time.monotonic() >= begun,
}
result
"""
WHOLE = {
    "frame": 499500,
    "figure": 1,
    "digest": True,
    "memory": True,
    "mode": "0o640",
    "offset": 4096,
    "transaction": [(7,)],
    "thread": True,
    "child": b"through a child\n",
    "environment": "kept",
    "monotonic": True,
}


class Prepared:
    """A sandbox with a lot of state, a snapshot of it, and two sandboxes made from that."""

    def __init__(self, client: cellbox.Client) -> None:
        self.parent = cellbox.Sandbox.create(client=client, ttl_seconds=600, metadata={"role": "parent"})
        self.context = self.parent.create_code_context().id
        done = self.run(self.parent, PREPARE)
        assert done.error is None, done.error
        self.snapshot = self.parent.snapshot(name="prepared")
        # The template and sizes of the snapshot count, whatever the request says.
        self.clones = [
            cellbox.Sandbox.create(
                "base", client=client, from_snapshot=self.snapshot.id, memory_mb=128, ttl_seconds=600
            )
            for _ in range(2)
        ]

    def run(self, sandbox: cellbox.Sandbox, code: str) -> cellbox.Execution:
        return sandbox.get_code_context(self.context).run_code(code)


@pytest.fixture(scope="module")
def prepared(client: cellbox.Client) -> Iterator[Prepared]:
    made = Prepared(client)
    yield made
    for sandbox in (made.parent, *made.clones):
        sandbox.kill()
    client.snapshots.delete(made.snapshot.id)


def value(done: cellbox.Execution) -> Any:
    assert done.error is None, done.error
    return ast.literal_eval(done.text or "")


def test_all_state_comes_back_under_the_old_context_id(prepared: Prepared) -> None:
    clone = prepared.clones[0]
    assert (clone.template, clone.memory_mb) == (prepared.parent.template, prepared.parent.memory_mb)
    assert clone.info.from_snapshot == prepared.snapshot.id
    for sandbox in (clone, prepared.parent):
        assert value(prepared.run(sandbox, CHECK)) == WHOLE


def test_copies_share_no_random_state_and_no_identity(prepared: Prepared) -> None:
    boxes = [prepared.parent, *prepared.clones]
    live = [value(prepared.run(box, DRAW)) for box in boxes]  # their kernel drew nothing since it was copied
    fresh = [value(box.create_code_context().run_code(DRAW)) for box in boxes]
    for drawn in (live, fresh):
        for name in drawn[0]:
            found = [one[name] for one in drawn]
            assert len(set(found)) == 3, f"{name}: {found}"
    clone = prepared.clones[1]
    assert clone.exec("grep -c $(hostname) /etc/hosts").stdout == "1\n"
    assert abs(float(clone.exec("date +%s.%N").stdout) - time.time()) < 2


def test_a_cell_that_runs_meanwhile_goes_on_on_both_sides(prepared: Prepared, client: cellbox.Client) -> None:
    context = prepared.parent.create_code_context()
    lines: list[str] = []
    started = threading.Event()

    def take(text: str) -> None:
        lines.append(text)
        started.set()

    code = "import time\nfor n in range(60):\n    print(n)\n    time.sleep(0.03)"
    reader = threading.Thread(target=lambda: context.run_code(code, on_stdout=take))
    reader.start()
    assert started.wait(30)
    with prepared.parent.fork() as child:
        assert child.metadata == {"fork_parent_id": prepared.parent.id}
        assert child.info.forked_from == prepared.parent.id
        assert child.boot_mode == "fork"
        after = child.get_code_context(context.id).run_code("n")  # waits its turn behind the cell that was copied
        assert (after.error, after.text, after.stdout) == (None, "59", "")
    reader.join(60)
    assert "".join(lines).split() == [str(n) for n in range(60)]


def test_a_tree_is_all_or_nothing_and_ends_in_time(prepared: Prepared, client: cellbox.Client) -> None:
    parent = prepared.parent
    tree = parent.fork_tree(3, metadata={"explore_ttl": "2", "try": "1"}, ttl_seconds=500)
    assert [child.metadata["fork_index"] for child in tree] == ["0", "1", "2"]
    assert {child.info.ttl_seconds for child in tree} == {2}
    winner = tree[0].promote()
    assert winner.deleted == []
    assert tree[0].info.ttl_seconds > 100
    assert tree[0].metadata["fork_tree_role"] == "winner"
    assert "explore_ttl" not in tree[0].metadata
    assert tree[0].promote(cleanup_siblings=True).winner == tree[0].id  # again is fine, and sweeps what is left
    assert all(child.id not in {box.id for box in client.sandboxes.list()} for child in tree[1:])
    tree[0].kill()
    with pytest.raises(errors.InvalidRequestError, match="explore_ttl"):
        parent.fork_tree(2, metadata={"explore_ttl": "soon"})
    with pytest.raises(errors.InvalidRequestError, match="fork_tree_id"):
        parent.fork_tree(2, metadata={"fork_tree_id": "mine"})
    with pytest.raises(errors.InvalidRequestError, match="no child"):
        parent.promote()
    assert [box.id for box in client.sandboxes.list() if box.metadata.get("try")] == []


@pytest.mark.parametrize("seconds", [0, -1, -3600, 1e18])
def test_a_ttl_that_makes_no_sense_is_refused(prepared: Prepared, seconds: float) -> None:
    for ask in (prepared.parent.fork, prepared.parent.snapshot):
        with pytest.raises(errors.InvalidRequestError):
            ask(ttl_seconds=seconds)


def test_snapshots_are_private_to_their_owner(prepared: Prepared, client: cellbox.Client, daemon: Daemon) -> None:
    stranger = client.tokens.create("stranger", owner="somebody-else").token
    with daemon.client(stranger) as other:
        assert other.snapshots.list() == []
        for ask in (
            lambda: other.snapshots.get(prepared.snapshot.id),
            lambda: other.snapshots.delete(prepared.snapshot.id),
            lambda: other.sandboxes.create(from_snapshot=prepared.snapshot.id),
            lambda: other.sandboxes.create(from_snapshot="../../etc"),
        ):
            with pytest.raises(errors.SnapshotNotFoundError):
                ask()
    assert client.snapshots.get(prepared.snapshot.id) == prepared.snapshot
    assert prepared.snapshot in client.snapshots.list(prepared.parent.id)
    with pytest.raises(errors.InvalidRequestError, match="env"):
        client.sandboxes.create(from_snapshot=prepared.snapshot.id, env={"A": "1"})


def test_the_command_line_does_the_same(
    prepared: Prepared, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CELLBOX_API_URL", daemon.url)
    monkeypatch.setenv("CELLBOX_API_KEY", daemon.admin_key)

    def cli(*arguments: str, code: int = Exit.OK) -> str:
        assert run(arguments) == code, capsys.readouterr().err
        return capsys.readouterr().out

    child = cli("fork", prepared.parent.id, "--metadata", "by=hand", "--ttl", "300").strip()
    assert "hibernated" not in cli("inspect", child)
    for command, status in (("pause", "paused"), ("resume", "running"), ("hibernate", "hibernated")):
        cli(command, child)
        assert status in cli("inspect", child)
    cli("pause", child, "ffffffff", code=Exit.NOT_FOUND)
    cli("wake", child)
    snapshot = cli("snapshot", "create", child, "--name", "mine").strip()
    assert snapshot in cli("snapshot", "ls", "--sandbox", child)
    copy = cli("create", "--from-snapshot", snapshot, "--ttl", "300").strip()
    cli("snapshot", "rm", snapshot)
    assert snapshot not in cli("snapshot", "ls")
    tree = cli("fork", copy, "--count", "2").split()
    assert len(tree) == 2
    cli("kill", child, copy, *tree)
