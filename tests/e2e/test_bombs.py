"""Code that takes all it can get ends in a typed outcome, and its neighbour goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import cellbox
from cellbox import errors

from .conftest import Daemon

NewSandbox = Callable[..., cellbox.Sandbox]


@contextmanager
def neighbour_goes_on(neighbour: cellbox.Sandbox) -> Iterator[None]:
    """Ask the neighbour something ten times a second; every answer must be right and come within a second."""
    stop, slowest, wrong = threading.Event(), [0.0], list[object]()

    def ask() -> None:
        context = neighbour.create_code_context()
        while not stop.is_set():
            started = time.monotonic()
            try:
                answer = context.run_code("6 * 7").text
            except errors.CellboxError as error:
                answer = repr(error)
            slowest[0] = max(slowest[0], time.monotonic() - started)
            if answer != "42":
                wrong.append(answer)
            time.sleep(0.1)
        context.close()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert wrong == []
    assert slowest[0] < 1.0, f"the neighbour waited {slowest[0]:.2f} s"


def test_fork_bomb(new_sandbox: NewSandbox, sandbox: cellbox.Sandbox) -> None:
    box = new_sandbox(template="base")
    with neighbour_goes_on(sandbox):
        result = box.exec("bomb() { bomb | bomb & }; bomb; sleep 8", timeout_seconds=4)
        assert result.reason in {"timeout", "exited", "out_of_memory"}
        started = time.monotonic()
        assert box.exec("echo ok", timeout_seconds=20).stdout == "ok\n"
        assert time.monotonic() - started < 5
        assert int(box.exec("ls -d /proc/[0-9]* | wc -l").stdout) < 40, "the bomb was cleared away"


def test_memory_bomb_in_a_cell(new_sandbox: NewSandbox, sandbox: cellbox.Sandbox) -> None:
    box = new_sandbox(memory_mb=512)
    context = box.create_code_context()
    context.run_code("kept = 1")
    with neighbour_goes_on(sandbox):
        done = context.run_code(
            "import os\nhog = []\nwhile True:\n    hog.append(bytearray(os.urandom(1 << 20)))", timeout_seconds=60
        )
    assert done.error is not None
    assert "MemoryError" in done.error or done.reason == "out_of_memory", done.error
    assert context.run_code("1 + 1").text == "2", "the sandbox lives on"
    assert box.usage().host_peak_bytes < (512 + box.info.disk_mb + 256) * 1024**2


def test_memory_bomb_in_a_command(new_sandbox: NewSandbox) -> None:
    box = new_sandbox(memory_mb=256, template="base")
    result = box.exec("python3 -c 'x = []\nwhile 1: x.append(bytes(b\"x\" * (1 << 20)))'", timeout_seconds=60)
    assert result.reason == "out_of_memory" or "MemoryError" in result.stderr
    assert box.exec("echo ok").stdout == "ok\n"


def test_a_full_disk(new_sandbox: NewSandbox, sandbox: cellbox.Sandbox) -> None:
    box = new_sandbox(disk_mb=64, template="base")
    with neighbour_goes_on(sandbox):
        result = box.exec("head -c 200000000 /dev/zero > /workspace/fill", timeout_seconds=60)
        assert "No space left on device" in result.stderr
        assert result.exit_code != 0
        with pytest.raises(errors.StorageFullError):
            box.filesystem.write("/workspace/more", bytes(8 << 20))
        assert box.exec("echo ok").stdout == "ok\n"
        box.filesystem.remove("/workspace/fill")
        box.filesystem.write("/workspace/more", bytes(8 << 20))


def test_the_guest_sees_what_it_gets(new_sandbox: NewSandbox) -> None:
    box = new_sandbox(disk_mb=128, memory_mb=512, cpu=1, template="base")
    size_kb = int(box.exec("df -k --output=size / | tail -1").stdout)
    assert abs(size_kb - 128 * 1024) < 1024
    assert box.exec("nproc").stdout.strip() == "1"


def test_cpu_is_held_to_its_share(new_sandbox: NewSandbox) -> None:
    box = new_sandbox(cpu=0.5, template="base")
    assert box.info.enforced["cpu"], "this host does not limit CPU: `cellbox doctor` says why"
    before, started = box.usage().host_cpu_seconds, time.monotonic()
    box.exec("for i in 1 2 3; do (while :; do :; done) & done; sleep 5; kill $(jobs -p)", timeout_seconds=20)
    used, elapsed = box.usage().host_cpu_seconds - before, time.monotonic() - started
    assert used / elapsed < 0.5 * 1.15


def test_an_output_flood_is_cut_and_says_so(new_sandbox: NewSandbox) -> None:
    box = new_sandbox(template="base")
    result = box.exec("yes | head -c 100000000", timeout_seconds=60)
    assert result.exit_code == 0
    assert len(result.stdout) < 10_000_000
    assert result.stdout_dropped_bytes + len(result.stdout.replace("\n[…", "")) > 99_000_000
    assert f"{result.stdout_dropped_bytes} bytes cut" in result.stdout


def test_no_host_file_or_network_is_reachable(new_sandbox: NewSandbox, daemon: Daemon) -> None:
    box = new_sandbox(template="base")
    assert box.exec("cat /proc/mounts | grep -v -E ' (/|/dev.*|/proc.*|/sys.*|/tmp) ' | grep -v cellbox").stdout == ""
    devices = set(box.exec("ls /dev").stdout.split())
    assert devices <= {
        "fd", "full", "fuse", "net", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
        "urandom", "zero",
    }  # fmt: skip
    seen = box.exec("env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; hostname; mount").stdout
    assert daemon.canary not in seen
    assert str(daemon.data_dir) not in seen
    attempt = box.exec("timeout 5 python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 3)'")
    assert "unreachable" in attempt.stderr.lower() or "no route to host" in attempt.stderr.lower()
    assert (
        box.exec("timeout 5 python3 -m http.server -b 127.0.0.1 8000 & sleep 1; curl -sf 127.0.0.1:8000").exit_code == 0
    )
