"""A shell keeps everything but what a command prints, and nothing that a command does can break it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from cellbox.wire import messages

if TYPE_CHECKING:
    from .conftest import HostEnd, Operation

Run = Callable[..., "Operation"]


@pytest.fixture
def run(guest: HostEnd) -> Run:
    guest.do(messages.OpenShell(shell_id="s", cwd="/tmp"))

    def run(command: str, **options: Any) -> Operation:
        done = guest.do(messages.RunInShell(shell_id="s", command=command, **options))
        assert done.outcome["type"] == "shell_done", done.outcome
        return done

    return run


def told(done: Operation) -> tuple[bytes, int]:
    return done.content, done.outcome["exit_code"]


def test_state_persists_and_output_is_clean(run: Run) -> None:
    assert told(run("cd /usr; X=1; export Y=2; f() { echo f$1; }; alias hi='echo hello'")) == (b"", 0)
    assert told(run("pwd; echo $X; bash -c 'echo $Y'; f 3; hi")) == (b"/usr\n1\n2\nf3\nhello\n", 0)
    assert run("cd /tmp").outcome["cwd"] == "/tmp"
    assert told(run("echo a; echo b >&2; echo c")) == (b"a\nb\nc\n", 0)
    assert told(run('cat; read x; echo "[$x]"')) == (b"[]\n", 0)
    # The text and the state, and what `ls` opens itself: nothing that ends a command or feeds the shell.
    assert run("ls /proc/self/fd").content.split() == [b"0", b"1", b"2", b"202", b"203", b"3"]
    assert told(run("printf '\\0\\377\\r\\n'")) == (b"\0\xff\r\n", 0)
    assert told(run("(exit 7)"))[1] == 7
    assert told(run("nosuch")) == (b"/dev/fd/202: line 1: nosuch: command not found\n", 127)
    assert told(run("kill -9 $BASHPID & wait $!"))[1] == 137


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("exit 7", 7),
        ("g() { exit 8; }; g", 8),
        ("set -e; false; echo not reached", 1),
        ("set -u; echo $nosuch; echo not reached", 1),
        ("trap 'echo bye' EXIT; exit 9", 9),
        ("break; continue; return 3", 3),
        ("echo 'unfinished", 2),
        ("if true; then", 2),
        ("exec 3</nowhere", 1),
        ("kill -TERM $$", 143),
        ("set -o posix; exit 4", 4),
    ],
)
def test_what_ends_a_command_does_not_end_the_shell(run: Run, command: str, exit_code: int) -> None:
    run("cd /usr; X='a  b'; declare -A M=([k]=v); f() { echo f; }; shopt -s extglob; umask 027")
    done = run(command)
    assert b"not reached" not in done.content
    assert (b"bye" in done.content) == ("bye" in command)
    kept = done.outcome["state_kept"]
    assert (done.outcome["exit_code"], kept) == (exit_code, True), done.content
    assert run('set +eu; echo "$X ${M[k]}"; f; pwd; umask; shopt extglob').content == (
        b"a  b v\nf\n/usr\n0027\nextglob        \ton\n"
        if kept
        else run("echo ' '; f; pwd; umask; shopt extglob").content
    )


def test_a_shell_that_is_killed_or_replaced_is_followed_by_another(run: Run) -> None:
    run("X=1")
    for command, code in (("kill -9 $$", 137), ("exec true", 0), ("exec sleep 0", 0)):
        outcome = run(command).outcome
        assert (outcome["exit_code"], outcome["reason"], outcome["state_kept"]) == (code, "died", False)
    assert run("echo [$X]").content == b"[]\n"


@pytest.mark.parametrize(
    "command",
    [
        "sleep 8100",
        "while :; do :; done",
        "sleep 8100 | cat; echo not reached",
        "trap '' INT; sleep 8100",
        "bash -c 'trap \"\" INT TERM; sleep 8100; sleep 8100'",
        "setsid sleep 8100",
        "(sleep 8100) & wait",
        "read x < <(sleep 8100)",
    ],
)
def test_a_time_limit_ends_the_command_and_keeps_the_shell(run: Run, command: str) -> None:
    run("X=kept; cd /usr; sleep 200 & JOB=$!")
    started = time.monotonic()
    outcome = run(f"echo before; Y=too; {command}", timeout_seconds=0.3).outcome
    assert time.monotonic() - started < 5
    assert (outcome["reason"], outcome["state_kept"]) == ("timeout", True)
    assert told(run("echo $X $Y; pwd; kill -0 $JOB; kill $JOB; pgrep -f 'sleep 810[0]'")) == (b"kept too\n/usr\n", 1)


def test_background_jobs_go_on_and_their_output_comes_with_the_next_command(run: Run) -> None:
    assert told(run("(sleep 0.1; echo late) & echo now")) == (b"now\n", 0)
    time.sleep(0.5)
    done = run("echo next")
    assert done.content == b"late\nnext\n"
    assert done.events == [{"type": "late_output", "stdout": 5, "stderr": 0}]
    done = run("head -c 1000000 /dev/zero & wait; head -c 1000000 /dev/zero &")
    seen, dropped, deadline = len(done.content), 0, time.monotonic() + 20
    while seen + dropped < 2_000_000 and time.monotonic() < deadline:
        done = run("sleep 0.05")
        seen += len(done.content)
        dropped += done.outcome["late_dropped_bytes"]
    assert seen + dropped == 2_000_000
    assert told(run("sleep 8100 & X=$!; kill $X; wait $X"))[1] == 143


def test_a_terminal_when_asked_for(run: Run) -> None:
    assert told(run("[ -t 1 ] || echo none")) == (b"none\n", 0)
    done = run("[ -t 1 ] && [ -t 2 ] && stty size <&1; echo $TERM; X=5", terminal=True)
    assert told(done) == (b"40 120\r\nxterm-256color\r\n", 0)
    assert told(run("echo $X $TERM; [ -t 1 ]")) == (b"5 dumb\n", 1)


def test_megabytes_in_and_out(run: Run) -> None:
    assert told(run(f"X='{'x' * 1_000_000}'; echo ${{#X}}")) == (b"1000000\n", 0)
    assert run("head -c 20000000 /dev/zero").content == bytes(20_000_000)
    assert run("exit").outcome["state_kept"]
    assert told(run("echo ${#X}")) == (b"1000000\n", 0)


def test_commands_of_one_shell_wait_for_each_other(guest: HostEnd, run: Run) -> None:
    operations = [
        guest.open(messages.RunInShell(shell_id="s", command=f"sleep 0.2; echo {n}; N=$((N+1)); echo $N"))
        for n in range(3)
    ]
    guest.cancel(operations[1])
    for operation in operations:
        guest.wait(operation)
    assert [bytes(operation.content) for operation in (operations[0], operations[2])] == [b"0\n1\n", b"2\n2\n"]
    assert operations[1].outcome["code"] == "cancelled"


def test_interrupt_list_close(guest: HostEnd, run: Run) -> None:
    running = guest.open(messages.RunInShell(shell_id="s", command="echo on; sleep 8100"))
    while not running.content:
        guest.read(5)
    assert guest.do(messages.ListShells()).outcome["shells"] == [
        {"type": "shell", "shell_id": "s", "cwd": "/tmp", "is_busy": True}
    ]
    assert guest.do(messages.InterruptShell(shell_id="s")).outcome["was_busy"]
    assert guest.wait(running).outcome["reason"] == "interrupted"
    run("sleep 12345 & disown; setsid sleep 12345 &")
    guest.do(messages.CloseShell(shell_id="s"))
    assert guest.run("pgrep -f 'sleep 1234[5]'").stdout == b""
    assert guest.do(messages.RunInShell(shell_id="s", command="true")).outcome["code"] == "shell_not_found"
