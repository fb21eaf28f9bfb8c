from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from cellbox.wire import messages

if TYPE_CHECKING:
    from .conftest import HostEnd


def is_running(marker: str) -> bool:
    """Tell whether a process has `marker` as an argument."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if marker.encode() in file.read().split(b"\0"):
                    return True
        except OSError:
            continue
    return False


def test_streams_are_apart_and_byte_exact(guest: HostEnd) -> None:
    done = guest.run(r"printf 'a\n\nb\r\nc\000\377'; echo err >&2; exit 3")
    assert (done.stdout, done.stderr) == (b"a\n\nb\r\nc\0\xff", b"err\n")
    assert (done.outcome["exit_code"], done.outcome["reason"]) == (3, "exited")


def test_death_by_signal_is_reported_as_a_shell_does(guest: HostEnd) -> None:
    outcome = guest.run("kill -TERM $$").outcome
    assert (outcome["exit_code"], outcome["signal"]) == (143, 15)


def test_stdin_is_empty_unless_given(guest: HostEnd) -> None:
    assert guest.run("cat; echo end").stdout == b"end\n"
    data = os.urandom(3_000_000)
    fed = guest.do(messages.Exec(command="cat", has_stdin=True), data)
    assert fed.stdout == data
    assert guest.do(messages.Exec(command="head -c 1 >/dev/null", has_stdin=True), data).outcome["exit_code"] == 0


def test_output_is_complete_before_the_end(guest: HostEnd) -> None:
    expected = "".join(f"{number}\n" for number in range(1, 20001)).encode()
    for _ in range(20):
        assert guest.run("seq 1 20000").stdout == expected


def test_background_child_does_not_hold_the_command_open(guest: HostEnd) -> None:
    started = time.monotonic()
    done = guest.run("sleep 30 & echo started")
    assert done.stdout == b"started\n"
    assert done.outcome["survivors"] == 1
    assert time.monotonic() - started < 5


def test_timeout_leaves_no_survivor_however_it_hides(guest: HostEnd) -> None:
    number = f"6{os.getpid()}"
    done = guest.run(
        f"echo begin; trap '' TERM; (setsid sleep {number} &); env -i setsid sleep {number} & sleep {number}",
        timeout_seconds=0.5,
    )
    assert done.stdout == b"begin\n"
    assert (done.outcome["reason"], done.outcome["survivors"]) == ("timeout", 0)
    assert done.outcome["duration_ms"] < 2500
    assert not is_running(number)


def test_idle_timeout_counts_from_the_last_output(guest: HostEnd) -> None:
    done = guest.run("for i in 1 2 3; do echo $i; sleep 0.2; done; sleep 60", idle_timeout_seconds=0.6)
    assert done.stdout == b"1\n2\n3\n"
    assert done.outcome["reason"] == "idle_timeout"


def test_cancel_kills_the_command(guest: HostEnd) -> None:
    number = f"7{os.getpid()}"
    running = guest.open(messages.Exec(command=f"echo on; sleep {number}"))
    while not running.stdout:
        guest.read(10)
    guest.cancel(running)
    assert guest.wait(running).outcome["reason"] == "cancelled"
    assert not is_running(number)


def test_long_command_works(guest: HostEnd) -> None:
    assert guest.run(f"echo {'A' * 1_000_000} | wc -c").stdout.strip() == b"1000001"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"cwd": "/nope"}, "/nope"),
        ({"cwd": "/etc/passwd"}, "/etc/passwd"),
        ({"cwd": "relative"}, "relative"),
        ({"user": "nosuchuser"}, "nosuchuser"),
        ({"env": {"A=B": "x"}}, "A=B"),
    ],
)
def test_senseless_parameters_are_refused_by_name(guest: HostEnd, options: dict[str, object], named: str) -> None:
    outcome = guest.run("true", **options).outcome
    assert outcome["code"] == "invalid_request"
    assert named in outcome["message"]


def test_environment_is_the_template_s_and_what_was_asked_for(guest: HostEnd) -> None:
    done = guest.run('echo "$FOO $ASKED $HOME $USER $LANG"', env={"ASKED": "yes"})
    assert done.stdout == b"bar yes /root root C.UTF-8\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_command_runs_as_the_named_user(guest: HostEnd) -> None:
    done = guest.run("id -u; id -G; echo $USER", user="nobody", cwd="/")
    assert done.stdout.split()[0] == b"65534"
    assert done.stdout.split()[-1] == b"nobody"
    assert guest.run("id -u").stdout == b"0\n"


def test_many_at_once_each_get_their_exit_code(guest: HostEnd) -> None:
    operations = [guest.open(messages.Exec(command=f"exit {number % 200}")) for number in range(200)]
    assert [guest.wait(one).outcome["exit_code"] for one in operations] == [number % 200 for number in range(200)]


def test_descriptors_and_zombies_stay_flat(guest: HostEnd) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{guest.process.pid}/fd"))

    guest.run("true")
    before = descriptors()
    for _ in range(50):
        guest.run("(sleep 0.01 &); true")
        guest.run("true", cwd="/nope")
        guest.do(messages.Exec(command="true", has_stdin=True), b"x")
    time.sleep(0.2)
    guest.run("true")
    assert descriptors() == before
    with open(f"/proc/{guest.process.pid}/task/{guest.process.pid}/children") as file:
        assert file.read().split() == []
