"""Commands: their ends, their input and output, what they leave behind."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

import cellbox
from cellbox import errors
from cellbox.protocol.commands import CommandExited, StdoutChunk

from .conftest import Daemon


@pytest.fixture(scope="module")
def box(client: cellbox.Client) -> Iterator[cellbox.Sandbox]:
    with cellbox.Sandbox.create("base", ttl_seconds=600, client=client) as shared:
        yield shared


def running(box: cellbox.Sandbox, name: str) -> int:
    return int(box.exec(f"pgrep -c -x {name}; true").stdout)


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.02)


# -------------------------------------------------------------------------------------------------- time limits, ends


@pytest.mark.parametrize(
    "cmd",
    [
        "sleep 1000",
        "for j in 1 2; do (while :; do sleep 1000; done) & done; sleep 1000",
        "setsid sh -c 'sleep 1000 & sleep 1000' & sleep 1000",
        "(setsid sleep 1000 &) ; nohup sleep 1000 >/dev/null 2>&1 & wait",
        "trap '' TERM INT HUP; while :; do sleep 1; done",
        (
            'python3 -c \'import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: os.execlp("sleep", '
            '"sleep", "1000")\ntime.sleep(1000)\''
        ),
        'python3 -c \'re = __import__("re"); re.match(r"(a+)+$", "a" * 40 + "b")\'',
    ],
)
def test_a_time_limit_ends_all_that_a_command_started(box: cellbox.Sandbox, cmd: str) -> None:
    started = time.monotonic()
    result = box.exec(f"echo begun; {cmd}", timeout_seconds=0.5)
    assert time.monotonic() - started < 1.5
    assert (result.reason, result.survivors) == ("timeout", 0)
    assert result.exit_code in {137, 143}
    assert result.stdout == "begun\n", "what was printed before is not lost"
    assert running(box, "sleep") == 0


def test_leaving_a_stream_or_hanging_up_ends_the_command(daemon: Daemon, box: cellbox.Sandbox) -> None:
    for event in box.exec_stream("echo begun; sleep 1000"):
        assert event == StdoutChunk(chunk="begun\n")
        break
    wait_until(lambda: running(box, "sleep") == 0, 2)

    address = urlsplit(daemon.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    headers = {"Authorization": f"Bearer {daemon.admin_key}", "Content-Type": "application/json"}
    connection.request("POST", f"/v1/sandboxes/{box.id}/exec", json.dumps({"cmd": "sleep 1000"}), headers)
    wait_until(lambda: running(box, "sleep") == 1)
    connection.close()
    wait_until(lambda: running(box, "sleep") == 0, 2)


def test_a_timeout_is_the_same_every_time(box: cellbox.Sandbox) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: box.exec("echo x; sleep 1000", timeout_seconds=0.3), range(16)))
    assert {(result.reason, result.stdout) for result in results} == {("timeout", "x\n")}


def test_an_idle_limit(box: cellbox.Sandbox) -> None:
    assert box.exec("echo hi; sleep 1000", idle_timeout_seconds=0.4).reason == "idle_timeout"
    talks = box.exec("for i in 1 2 3 4; do echo $i; sleep 0.2; done", idle_timeout_seconds=0.6)
    assert (talks.reason, talks.stdout) == ("exited", "1\n2\n3\n4\n")


@pytest.mark.parametrize("timeout_seconds", [0, -1, 10**9])
def test_a_senseless_limit_is_refused(box: cellbox.Sandbox, timeout_seconds: float) -> None:
    with pytest.raises(errors.InvalidRequestError, match="timeout_seconds"):
        box.exec("true", timeout_seconds=timeout_seconds)


def test_what_a_command_leaves_lives_on(box: cellbox.Sandbox) -> None:
    for cmd, printed in [
        ("sleep 91 &", ""),
        ("nohup sleep 92 & echo started", "started\n"),
        ("nohup sleep 93 >/dev/null 2>&1 &", ""),
        ("python3 -m http.server 8001 &", ""),
    ]:
        started = time.monotonic()
        result = box.exec(cmd)
        assert time.monotonic() - started < 1, "it is over when its shell is"
        assert (result.exit_code, result.stdout, result.survivors) == (0, printed, 1)
    assert box.exec("kill -0 $(pgrep -f 'sleep 93') && echo alive").stdout == "alive\n"
    pid = int(box.exec("sleep 94 & echo $!").stdout)
    assert box.exec(f"cat /proc/{pid}/comm").stdout == "sleep\n"
    box.exec("pkill sleep; pkill python3")


# ---------------------------------------------------------------------------------------------------- many short ones


def test_exact_exit_codes_and_no_zombies(box: cellbox.Sandbox) -> None:
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda n: box.exec(f"(sleep 0.01 &); exit {n}").exit_code, range(60)))
    assert codes == list(range(60))
    wait_until(lambda: box.exec("ps -eo stat | grep -c Z; true").stdout == "0\n")


def test_output_is_whole_when_a_command_is_over(box: cellbox.Sandbox) -> None:
    with ThreadPoolExecutor(4) as pool:
        sizes = list(pool.map(lambda _: len(box.exec("seq 1 20000").stdout), range(40)))
    assert set(sizes) == {108894}


def test_a_short_command_is_quick(box: cellbox.Sandbox) -> None:
    times: list[float] = []
    for _ in range(30):
        started = time.monotonic()
        box.exec("true")
        times.append(time.monotonic() - started)
    assert statistics.median(times) < 0.1, "there is no fixed wait in it"


# --------------------------------------------------------------------------------------------------- input and output


@pytest.mark.parametrize(
    ("cmd", "stdout", "exit_code"),
    [
        ("cat", "", 0),
        ("grep foo", "", 1),
        ("sed -n 1p", "", 0),
        ("read x; echo [$x]", "[]\n", 0),
        ("python3 -c 'input()' 2>&1 | tail -1", "EOFError: EOF when reading a line\n", 0),
        ("cat <<END\nhello\nEND", "hello\n", 0),
        ("echo hello | cat", "hello\n", 0),
        ("printf 'a\\n\\nb\\n\\n\\nc\\n'", "a\n\nb\n\n\nc\n", 0),
        ("printf 'a\\r\\nb\\rc'", "a\r\nb\rc", 0),
        ("printf '\\xff\\xfe\\000z'", "\ufffd\ufffd\0z", 0),
        ("echo " + "A" * 300_000 + " | wc -c", "300001\n", 0),
        ("kill -9 $$", "", 137),
        ("exit 300", "", 44),
        ("no_such_command 2>/dev/null", "", 127),
    ],
)
def test_input_and_output(box: cellbox.Sandbox, cmd: str, stdout: str, exit_code: int) -> None:
    result = box.exec(cmd, timeout_seconds=10)
    assert (result.stdout, result.exit_code, result.reason) == (stdout, exit_code, "exited")
    events = list(box.exec_stream(cmd, timeout_seconds=10))
    assert "".join(event.chunk for event in events if isinstance(event, StdoutChunk)) == stdout
    assert isinstance(events[-1], CommandExited)


def test_megabytes_in_and_out_at_the_same_time(box: cellbox.Sandbox) -> None:
    text = "0123456789" * 300_000
    result = box.exec("tee /dev/stderr", stdin=text, timeout_seconds=60)
    assert result.stdout == result.stderr == text
    assert box.exec("exit 5", stdin=text).exit_code == 5, "input that nobody reads is no error"
    assert box.exec("head -c 1", stdin=text).stdout == "0"
    assert box.exec("cat", stdin="é☃😀\n").stdout == "é☃😀\n"


def test_cut_output_is_marked_and_counted(box: cellbox.Sandbox) -> None:
    result = box.exec("echo first; yes | head -c 30000000; echo last", timeout_seconds=60)
    assert result.stdout.startswith("first\n")
    assert result.stdout.endswith("last\n")
    assert f"{result.stdout_dropped_bytes} bytes cut here" in result.stdout
    kept = len(result.stdout) - len(result.stdout[result.stdout.index("\n[…") :].split("]\n")[0]) - 2
    assert kept + result.stdout_dropped_bytes == 30_000_011


def test_a_stream_that_is_cut_is_an_error_and_no_exit(client: cellbox.Client) -> None:
    box = cellbox.Sandbox.create("base", client=client, ttl_seconds=120)
    with pytest.raises(errors.SandboxNotFoundError):
        for event in box.exec_stream("echo begun; sleep 1000"):
            assert not isinstance(event, CommandExited)
            box.kill()


# ----------------------------------------------------------------------------------------------- where, who, with what


def test_working_directories(box: cellbox.Sandbox) -> None:
    box.exec("mkdir -p '/tmp/a b/ü'")
    assert box.exec("pwd").stdout == "/workspace\n"
    assert box.exec("pwd", cwd="/tmp/a b/ü").stdout == "/tmp/a b/ü\n"
    for cwd in ("/nope", "/etc/passwd", "relative"):
        with pytest.raises(errors.InvalidRequestError, match=cwd):
            box.exec("pwd", cwd=cwd)
    assert box.exec("mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone; echo on").stdout == "on\n"


def test_environments(box: cellbox.Sandbox) -> None:
    who = "echo $HOME $USER $LANG; python3 -c 'import locale; print(locale.getpreferredencoding())'"
    assert box.exec(who).stdout == "/root root C.UTF-8\nUTF-8\n"
    assert box.exec("echo $A $B", env={"A": "1  2", "B": "é☃"}).stdout == "1 2 é☃\n"
    for name in ("", "A=B", "A\0"):
        with pytest.raises(errors.InvalidRequestError):
            box.exec("true", env={name: "1"})


@pytest.mark.parametrize(
    ("user", "stdout"),
    [
        ("root", "0 0 /root\n"),
        ("daemon", "1 1 /usr/sbin\n"),
        ("65534", "65534 65534 /nonexistent\n"),
        ("1234", "1234 0 /\n"),
    ],
)
def test_users(box: cellbox.Sandbox, user: str, stdout: str) -> None:
    assert box.exec("echo $(id -u) $(id -g) $HOME", user=user).stdout == stdout


def test_an_unknown_user_is_refused(box: cellbox.Sandbox) -> None:
    with pytest.raises(errors.InvalidRequestError, match="nobody_there"):
        box.exec("id", user="nobody_there")


def test_without_dev_null_and_without_bash(client: cellbox.Client) -> None:
    with cellbox.Sandbox.create("base", client=client, ttl_seconds=120) as box:
        box.exec("rm -f /dev/null; echo data > /dev/null")
        assert box.exec("cat; echo on").stdout == "on\n", "a script that replaces /dev/null harms nobody"
