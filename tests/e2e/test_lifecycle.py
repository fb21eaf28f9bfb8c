"""Many things at once, idleness, quotas: a sandbox lives exactly as long and as awake as it should."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cellbox
from cellbox import errors

from .conftest import Daemon

NewSandbox = Callable[..., cellbox.Sandbox]


def test_a_new_sandbox_answers_at_once_also_when_many_are_made(client: cellbox.Client) -> None:
    def create_and_run(number: int) -> str | None:
        with cellbox.Sandbox.create(client=client, ttl_seconds=300) as box:
            return box.run_code(f"{number} * 2").text

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(create_and_run, range(12))) == [str(number * 2) for number in range(12)]


def test_killing_ends_what_runs_and_may_be_said_twice(new_sandbox: NewSandbox) -> None:
    box = new_sandbox(template="base")
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(box.exec("sleep 60"))
        except errors.CellboxError as error:
            ended.append(error)

    threads = [threading.Thread(target=run) for _ in range(5)]
    for thread in threads:
        thread.start()
    while box.exec("pgrep -c -x sleep || true").stdout.strip() != "5":
        time.sleep(0.05)
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda _: box.kill(), range(10)))
    for thread in threads:
        thread.join(10)
    assert [type(outcome) for outcome in ended] == [errors.SandboxNotFoundError] * 5
    with pytest.raises(errors.SandboxNotFoundError):
        box.exec("true")


def test_an_idle_sandbox_costs_no_cpu_and_wakes_at_once(new_sandbox: NewSandbox) -> None:
    box = new_sandbox()
    assert box.info.enforced["freeze"], "this host can't freeze: `cellbox doctor` says why"
    context = box.create_code_context()
    context.run_code("x = 41")
    time.sleep(4)
    before = box.usage().host_cpu_seconds
    time.sleep(3)
    assert box.usage().host_cpu_seconds - before < 0.01
    assert context.run_code("import time; x + 1, abs(time.time() - time.time()) < 1").text == "(42, True)"


def test_background_work_keeps_a_sandbox_awake(new_sandbox: NewSandbox) -> None:
    box = new_sandbox()
    box.exec("nohup sh -c 'while :; do echo . >> /tmp/ticks; sleep 0.1; done' >/dev/null 2>&1 &")
    context = box.create_code_context()
    context.run_code(
        "import threading, time\nbeats = []\n"
        "def beat():\n    while True:\n        beats.append(time.time())\n        time.sleep(0.1)\n"
        "threading.Thread(target=beat, daemon=True).start()"
    )
    time.sleep(6)
    assert int(box.exec("wc -l < /tmp/ticks").stdout) > 40
    gap = context.run_code("max(b - a for a, b in zip(beats, beats[1:]))").text
    assert gap is not None
    assert float(gap) < 1.5, "the thread was held up"


def test_limits_on_how_many_are_told_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBOX_MAX_SANDBOXES", "2")
    monkeypatch.setenv("CELLBOX_MAX_SANDBOXES_PER_OWNER", "1")
    daemon = Daemon(tmp_path / "d")
    daemon.start()
    try:
        with daemon.client() as client:
            first = cellbox.Sandbox.create("base", client=client)
            with pytest.raises(errors.QuotaExceededError, match="max sandboxes reached"):
                cellbox.Sandbox.create("base", client=client)
            other = client.tokens.create("other", owner="other")
            third = client.tokens.create("third", owner="third")
            with daemon.client(other.token) as neighbour, daemon.client(third.token) as late:
                cellbox.Sandbox.create("base", client=neighbour)
                with pytest.raises(errors.CapacityError):
                    cellbox.Sandbox.create("base", client=late, retry_seconds=0)
                first.kill()
                assert cellbox.Sandbox.create("base", client=late).exec("echo in").stdout == "in\n"
    finally:
        daemon.stop()


def test_persistent_ones_outlive_their_ttl(new_sandbox: NewSandbox, client: cellbox.Client) -> None:
    box = new_sandbox(template="base", ttl_seconds=1, persistent=True)
    time.sleep(2)
    assert box.exec("echo alive").stdout == "alive\n"
    assert box.refresh().info.expires_at is None
    box.set_ttl(1)
    box.set_persistent(False)
    deadline = time.monotonic() + 4
    while box.id in [other.id for other in client.sandboxes.list()]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
