"""Shells through the SDK, and what a fork makes of them."""

from __future__ import annotations

import time

import pytest

import cellbox
from cellbox import errors


@pytest.fixture(scope="module")
def box(client: cellbox.Client) -> cellbox.Sandbox:
    with cellbox.Sandbox.create("base", client=client) as box:
        yield box


def test_run_stream_list_close(box: cellbox.Sandbox) -> None:
    with box.shells.create(cwd="/tmp", env={"A": "1"}) as shell:
        assert shell.run("cd /usr; B=$A").cwd == "/usr"
        result = shell.run("pwd; echo $B; echo err >&2")
        assert (result.output, result.exit_code, result.reason, result.state_kept) == (
            "/usr\n1\nerr\n",
            0,
            "exited",
            True,
        )
        events = list(shell.stream("echo one; sleep 0.3; echo two; false"))
        assert "".join(event.chunk for event in events[:-1]) == "one\ntwo\n"
        assert isinstance(events[-1], cellbox.ShellCommandEnded)
        assert events[-1].exit_code == 1
        limited = shell.run("sleep 100", timeout_seconds=0.3)
        assert (limited.reason, limited.state_kept) == ("timeout", True)
        assert shell.run("echo $B").output == "1\n"
        assert [one.id for one in box.shells.list()] == [shell.id]
        assert box.shells.get(shell.id).info.cwd == "/usr"
    with pytest.raises(errors.ShellNotFoundError):
        shell.run("true")
    with pytest.raises(errors.InvalidRequestError, match="no such working directory"):
        box.shells.create(cwd="/nowhere")


def test_leaving_a_stream_ends_the_command(box: cellbox.Sandbox) -> None:
    with box.shells.create() as shell:
        with shell.stream("echo on; sleep 4321") as events:
            assert next(iter(events)).chunk == "on\n"
        deadline = time.monotonic() + 20
        while box.exec("pgrep -f 'sleep 432[1]'").stdout:
            assert time.monotonic() < deadline
        assert shell.run("echo still here").output == "still here\n"


def test_a_shell_lives_on_in_a_fork(box: cellbox.Sandbox) -> None:
    with box.shells.create() as shell:
        shell.run("cd /usr; X=before; f() { echo f; }; sleep 5432 &")
        with box.fork() as child:
            twin = child.shells.get(shell.id)
            assert twin.run("pwd; echo $X; f; jobs | wc -l; X=child").output == "/usr\nbefore\nf\n1\n"
            assert shell.run("echo $X").output == "before\n"
            assert twin.run("echo $X").output == "child\n"


def test_a_waiting_shell_lets_its_sandbox_rest(box: cellbox.Sandbox) -> None:
    with box.shells.create() as shell:
        shell.run("true")
        deadline = time.monotonic() + 40
        while box.usage().host_cpu_percent is None or not _rests(box):
            assert time.monotonic() < deadline
        assert shell.run("echo awake").output == "awake\n"


def _rests(box: cellbox.Sandbox) -> bool:
    before = box.usage().host_cpu_seconds
    time.sleep(1.5)
    return box.usage().host_cpu_seconds == before
