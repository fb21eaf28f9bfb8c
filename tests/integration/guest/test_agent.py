from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cellbox.wire import frames, messages

if TYPE_CHECKING:
    from .conftest import HostEnd


def configure(start_command: str = "") -> messages.Configure:
    return messages.Configure(
        hostname="box", memory_mb=512, disk_mb=512, tasks=256, entropy="ab" * 32, start_command=start_command
    )


def test_hello_names_the_protocol_version(unconfigured: HostEnd) -> None:
    assert unconfigured.hello["version"] == frames.VERSION
    assert unconfigured.hello["kernel_problem"] == "no kernels in this test"


def test_nothing_but_ping_is_answered_before_configure(unconfigured: HostEnd) -> None:
    assert unconfigured.do(messages.Ping()).outcome == {"type": "done"}
    assert unconfigured.run("true").outcome["code"] == "invalid_request"


def test_configure_is_answered_once(guest: HostEnd) -> None:
    assert guest.do(configure()).outcome["code"] == "invalid_request"


def test_what_is_configured_ahead_waits_to_be_handed_over(unconfigured: HostEnd) -> None:
    assert unconfigured.do(replace(configure(), ahead=True)).outcome["type"] == "configured"
    assert unconfigured.run("true").outcome["code"] == "invalid_request"
    assert unconfigured.do(configure()).outcome["code"] == "invalid_request"
    handing_over = messages.HandOver(env={"WHOSE": "mine"}, start_command="echo started for $WHOSE")
    assert unconfigured.do(handing_over).outcome == {"type": "done"}
    assert unconfigured.run("printf $WHOSE").stdout == b"mine"
    while "started for mine" not in unconfigured.logs:
        unconfigured.read(10)
    assert unconfigured.do(handing_over).outcome["code"] == "invalid_request"


def test_what_was_not_configured_ahead_is_not_handed_over(guest: HostEnd) -> None:
    assert guest.do(messages.HandOver(env={"WHOSE": "mine"})).outcome["code"] == "invalid_request"
    assert guest.run("printf $WHOSE").stdout == b""


def test_start_command_output_becomes_log_lines(unconfigured: HostEnd) -> None:
    unconfigured.do(configure("printf 'one\\ntwo'; printf '%09000d\\n' 0 >&2; exit 3"))
    while not any("exit code 3" in line for line in unconfigured.logs):
        unconfigured.read(10)
    while len(unconfigured.logs) < 5:
        unconfigured.read(10)
    assert {"one", "two", "0" * 8192, "0" * 808} <= set(unconfigured.logs)


def test_background_processes_are_activity(guest: HostEnd) -> None:
    idle = guest.do(messages.ReadActivity()).outcome
    guest.run("sleep 60 >/dev/null 2>&1 &")
    running = guest.open(messages.Exec(command="echo started; sleep 60"))
    while not running.stdout:
        guest.read(10)
    busy = guest.do(messages.ReadActivity()).outcome
    assert (idle["commands"], idle["background_processes"]) == (0, 0)
    assert (busy["commands"], busy["background_processes"]) == (1, 1)


def test_everything_ends_with_the_channel(guest: HostEnd) -> None:
    pid = int(guest.run("setsid sleep 60 >/dev/null 2>&1 & echo $!").stdout)
    assert guest.process.stdin is not None
    guest.process.stdin.close()
    assert guest.process.wait(10) == 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        assert ") Z " in Path(f"/proc/{pid}/stat").read_text()  # our own parent may take its time to reap


def test_one_stalled_stream_does_not_hold_up_others(guest: HostEnd) -> None:
    stalled = guest.open(messages.Exec(command="yes"))
    stalled.returns_credit = False
    while stalled.received < 1024 * 1024:
        guest.read(10)
    assert guest.run("echo on").stdout == b"on\n"
    guest.cancel(stalled)
    assert guest.wait(stalled).outcome["reason"] == "cancelled"
    assert stalled.received < 2 * 1024 * 1024


def test_unknown_operation_is_refused(guest: HostEnd) -> None:
    assert guest.do(messages.ListContexts()).outcome["code"] == "invalid_request"
