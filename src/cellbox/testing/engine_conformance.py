"""What every engine must hold to, as tests. Third parties run them against their own engine.

Subclass `EngineConformance` in a test module and provide two fixtures:

* `engine`: a started `Engine`, closed afterwards
* `rootfs`: the path of a root filesystem with a POSIX `/bin/sh`, with `cat`, `ls`, `sleep` and `head` in `/bin`, and
  with the empty directories `/proc`, `/sys`, `/dev` and `/tmp`

The tests are coroutines for anyio's pytest plugin, on asyncio. The guest is a shell that runs each line it is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from cellbox.engines.base import (
    ATTACHMENTS,
    Attachment,
    Bind,
    Channel,
    Engine,
    EngineFault,
    ExitCause,
    Machine,
    MachineSpec,
)

GUEST = 'echo ready; while read -r line; do eval "$line"; done'
"""PID 1 of the tests: does what it is told, line by line, and ends when the channel does."""

_ANSWER_DEADLINE_S = 20.0


def shell_spec(rootfs: Path, **changes: Any) -> MachineSpec:
    """A small machine whose PID 1 is `GUEST`."""
    settings: dict[str, Any] = {
        "machine_id": secrets.token_hex(8),
        "rootfs": rootfs,
        "argv": ("/bin/sh", "-c", GUEST),
        "env": {"PATH": "/bin", "GREETING": "hello"},
        "memory_mb": 128,
        "disk_mb": 32,
        "cpu": 1,
        "tasks": 64,
    }
    return MachineSpec(**(settings | changes))


class Guest:
    """Talks to the shell in a machine, and closes its channel."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._received = b""
        self._open = {machine.channel.writer, machine.channel.reader, machine.channel.console}

    def send(self, line: str) -> None:
        os.write(self.machine.channel.writer, line.encode() + b"\n")

    async def read_line(self, *, deadline_s: float = _ANSWER_DEADLINE_S) -> str:
        """The next line the guest prints; raises `EOFError` at the end of it, and `TimeoutError`."""
        async with asyncio.timeout(deadline_s):
            while b"\n" not in self._received:
                chunk = await _read(self.machine.channel.reader)
                if not chunk:
                    raise EOFError(await self.complaint())
                self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    async def ask(self, line: str, *, deadline_s: float = _ANSWER_DEADLINE_S) -> str:
        """Run a line and return the one line that it prints."""
        self.send(line)
        return await self.read_line(deadline_s=deadline_s)

    async def complaint(self) -> str:
        """What PID 1 wrote to the console so far."""
        try:
            return os.read(self.machine.channel.console, 1 << 16).decode()
        except BlockingIOError:
            return ""

    def hang_up(self) -> None:
        """Close the guest's input."""
        self._close(self.machine.channel.writer)

    async def end(self) -> None:
        """Kill the machine and close the channel."""
        await self.machine.kill()
        for descriptor in list(self._open):
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        # Once only: an engine that works in the background may have got the number for something else by now.
        self._open.discard(descriptor)
        os.close(descriptor)


def close_channel(channel: Channel) -> None:
    """Close a channel, once. The owner of a machine does this when it is done with it."""
    for descriptor in (channel.writer, channel.reader, channel.console):
        os.close(descriptor)


@contextlib.asynccontextmanager
async def running(engine: Engine, spec: MachineSpec, image: Path | None = None) -> AsyncGenerator[Guest]:
    """A booted (and then already ready) or restored machine that is gone afterwards."""
    guest = Guest(await (engine.boot(spec) if image is None else engine.restore(spec, image)))
    try:
        if image is None:
            assert await guest.read_line() == "ready"
        yield guest
    finally:
        await guest.end()


async def _read(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, 1 << 16)


def open_descriptors() -> set[tuple[str, str]]:
    """This process's descriptors, each with what it leads to: what the collector closes meanwhile is no leak less."""
    found: set[tuple[str, str]] = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own
            found.add((entry.name, str(entry.readlink())))
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what follows soon: a kill is done before the kernel has given all of the guest's memory back."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


class EngineConformance:
    """The contract of `cellbox.engines.base`, one promise a test."""

    # -- starting

    async def test_probe_finds_a_started_engine_usable(self, engine: Engine) -> None:
        probe = await engine.probe()
        assert probe.usable
        assert probe.engine == engine.name
        assert probe.version
        assert {"memory", "cpu", "tasks", "freeze"} <= probe.enforced.keys()

    async def test_image_key_is_stable(self, engine: Engine) -> None:
        assert engine.image_key() == engine.image_key() != ""

    async def test_guest_gets_its_environment_and_nothing_of_the_daemon(
        self, engine: Engine, rootfs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CANARY", "must-not-enter")
        async with running(engine, shell_spec(rootfs)) as guest:
            assert await guest.ask("echo $GREETING [$CANARY]") == "hello []"

    async def test_guest_inherits_only_its_three_streams(self, engine: Engine, rootfs: Path) -> None:
        async with running(engine, shell_spec(rootfs)) as guest:
            guest.send("ls /proc/1/fd; echo end")
            lines = [await guest.read_line() for _ in range(4)]
            assert lines == ["0", "1", "2", "end"]

    async def test_guest_has_only_loopback(self, engine: Engine, rootfs: Path) -> None:
        async with running(engine, shell_spec(rootfs)) as guest:
            guest.send("cat /proc/net/dev; echo end")
            lines: list[str] = []
            while (line := await guest.read_line()) != "end":
                lines.append(line)
            assert [line.split(":")[0].strip() for line in lines if ":" in line] == ["lo"]

    async def test_guest_sees_the_resources_it_was_given(self, engine: Engine, rootfs: Path) -> None:
        if not (await engine.probe()).enforced["memory"]:
            pytest.skip("this host can't limit memory, and the guest sees the host's")
        async with running(engine, shell_spec(rootfs, memory_mb=192, cpu=1)) as guest:
            assert (await guest.ask("head -n 1 /proc/meminfo")).split()[1] == str(192 * 1024)
            count = "n=0; while read -r k v; do case $k in processor) n=$((n+1));; esac; done </proc/cpuinfo; echo $n"
            assert await guest.ask(count) == "1"

    async def test_root_is_read_only(self, engine: Engine, rootfs: Path) -> None:
        async with running(engine, shell_spec(rootfs)) as guest:
            assert await guest.ask("(echo x >/made) 2>/dev/null && echo written || echo refused") == "refused"
        assert not (rootfs / "made").exists()

    async def test_writable_root_reaches_the_host(self, engine: Engine, rootfs: Path) -> None:
        made = rootfs / "made"
        try:
            async with running(engine, shell_spec(rootfs, writable_root=True)) as guest:
                assert await guest.ask("echo x >/made && echo written") == "written"
            assert made.read_text() == "x\n"
        finally:
            made.unlink(missing_ok=True)

    async def test_binds_show_host_directories(self, engine: Engine, rootfs: Path, tmp_path: Path) -> None:
        for name in ("fixed", "open"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "note").write_text(f"{name}\n")
        binds = (
            Bind(host_path=tmp_path / "fixed", guest_path="/tmp/fixed", read_only=True),  # noqa: S108
            Bind(host_path=tmp_path / "open", guest_path="/tmp/open", read_only=False),  # noqa: S108
        )
        async with running(engine, shell_spec(rootfs, binds=binds)) as guest:
            assert await guest.ask("cat /tmp/fixed/note") == "fixed"
            assert await guest.ask("(echo x >/tmp/fixed/new) 2>/dev/null || echo refused") == "refused"
            assert await guest.ask("echo x >/tmp/open/new && echo written") == "written"
        assert (tmp_path / "open/new").read_text() == "x\n"

    async def test_an_id_in_use_is_refused(self, engine: Engine, rootfs: Path) -> None:
        spec = shell_spec(rootfs)
        async with running(engine, spec) as guest:
            with pytest.raises(EngineFault):
                await engine.boot(spec)
            assert await guest.ask("echo still here") == "still here"

    @pytest.mark.parametrize("machine_id", ["", "../up", "a/b", "UPPER", "a b", "a" * 200])
    async def test_an_id_that_could_name_something_else_is_refused(
        self, engine: Engine, rootfs: Path, machine_id: str
    ) -> None:
        with pytest.raises(EngineFault):
            await engine.boot(shell_spec(rootfs, machine_id=machine_id))

    async def test_a_program_that_is_not_there_fails_or_ends_the_machine(self, engine: Engine, rootfs: Path) -> None:
        try:
            machine = await engine.boot(shell_spec(rootfs, argv=("/bin/no-such-program",)))
        except EngineFault:
            return
        assert (await machine.wait()).cause is ExitCause.EXITED
        close_channel(machine.channel)

    async def test_cancelling_a_start_leaves_nothing(self, engine: Engine, rootfs: Path) -> None:
        spec = shell_spec(rootfs)
        for delay in (0.0, 0.02, 0.05):
            start = asyncio.ensure_future(engine.boot(spec))
            await asyncio.sleep(delay)
            start.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                guest = Guest(await start)
                await guest.end()
        assert await engine.sweep() == []
        async with running(engine, spec):
            pass

    async def test_many_machines_start_at_once(self, engine: Engine, rootfs: Path) -> None:
        machines = await asyncio.gather(*(engine.boot(shell_spec(rootfs)) for _ in range(5)))
        guests = [Guest(machine) for machine in machines]
        try:
            assert [await guest.read_line() for guest in guests] == ["ready"] * 5
        finally:
            await asyncio.gather(*(guest.end() for guest in guests))

    async def test_descriptors_of_the_daemon_stay_flat(self, engine: Engine, rootfs: Path) -> None:
        async with running(engine, shell_spec(rootfs)):
            pass
        before = open_descriptors()
        for _ in range(3):
            async with running(engine, shell_spec(rootfs)):
                pass
        await until(lambda: open_descriptors() <= before)

    # -- ending

    async def test_the_end_of_pid_1_is_reported(self, engine: Engine, rootfs: Path) -> None:
        async with running(engine, shell_spec(rootfs)) as guest:
            guest.send("exit 7")
            end = await guest.machine.wait()
            assert end.cause is ExitCause.EXITED
            assert "7" in end.detail

    async def test_closing_the_channel_ends_the_guest(self, engine: Engine, rootfs: Path) -> None:
        async with running(engine, shell_spec(rootfs)) as guest:
            guest.hang_up()
            assert (await guest.machine.wait()).cause is ExitCause.EXITED

    async def test_kill_is_idempotent_and_safe_at_once(self, engine: Engine, rootfs: Path) -> None:
        async with running(engine, shell_spec(rootfs)) as guest:
            waiting = asyncio.ensure_future(guest.machine.wait())
            await asyncio.gather(*(guest.machine.kill() for _ in range(5)))
            assert (await waiting).cause is ExitCause.KILLED
            await guest.machine.kill()
            with pytest.raises(EngineFault):
                await guest.machine.usage()
            with pytest.raises(EngineFault):
                await guest.machine.pause()

    async def test_kill_takes_every_process(self, engine: Engine, rootfs: Path) -> None:
        async with running(engine, shell_spec(rootfs)) as guest:
            assert await guest.ask("for i in 1 2 3 4 5; do sleep 100 & done; echo ok") == "ok"
            started = time.monotonic()
            await guest.machine.kill()
            assert time.monotonic() - started < 1
        assert await engine.sweep() == []

    async def test_running_out_of_memory_is_reported(self, engine: Engine, rootfs: Path) -> None:
        if not (await engine.probe()).enforced["memory"]:
            pytest.skip("this host can't limit memory")
        async with running(engine, shell_spec(rootfs, memory_mb=64, disk_mb=8)) as guest:
            # Doubles a string until there is no more.
            guest.send('x=0123456789abcdef; while :; do x="$x$x"; done')
            end = await asyncio.wait_for(guest.machine.wait(), _ANSWER_DEADLINE_S)
            assert end.cause is ExitCause.OUT_OF_MEMORY
            assert "64" in end.detail

    # -- usage and freezing

    async def test_usage_is_of_this_machine(self, engine: Engine, rootfs: Path) -> None:
        async with running(engine, shell_spec(rootfs)) as guest:
            before = await guest.machine.usage()
            assert 1 << 20 < before.memory_bytes <= max(before.memory_peak_bytes, before.memory_bytes) < 300 << 20
            assert before.processes >= 1
            await guest.ask("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo done")
            assert (await guest.machine.usage()).cpu_seconds > before.cpu_seconds

    async def test_a_paused_guest_stands_still(self, engine: Engine, rootfs: Path) -> None:
        if not (await engine.probe()).enforced["freeze"]:
            pytest.skip("this host can't freeze")
        async with running(engine, shell_spec(rootfs)) as guest:
            await guest.machine.pause()
            await guest.machine.pause()
            guest.send("echo awake")
            with pytest.raises(TimeoutError):
                await guest.read_line(deadline_s=0.3)
            await guest.machine.resume()
            assert await guest.read_line() == "awake"
            await guest.machine.resume()

    async def test_a_paused_machine_can_be_killed(self, engine: Engine, rootfs: Path) -> None:
        async with running(engine, shell_spec(rootfs)) as guest:
            await guest.machine.pause()
            await asyncio.wait_for(guest.machine.kill(), 5)
            assert (await guest.machine.wait()).cause is ExitCause.KILLED

    # -- checkpoints

    async def test_a_clone_goes_on_where_the_original_was(self, engine: Engine, rootfs: Path, tmp_path: Path) -> None:
        async with running(engine, shell_spec(rootfs)) as original:
            await original.ask("x=41; echo set")
            await original.machine.checkpoint(tmp_path, leave_running=True)
            assert await original.ask("x=$((x+1)); echo $x") == "42"
            async with (
                running(engine, shell_spec(rootfs), tmp_path) as one,
                running(engine, shell_spec(rootfs), tmp_path) as two,
            ):
                assert await one.ask("x=$((x+100)); echo $x") == "141"
                assert await two.ask("echo $x") == "41"

    async def test_a_checkpoint_can_end_the_machine(self, engine: Engine, rootfs: Path, tmp_path: Path) -> None:
        async with running(engine, shell_spec(rootfs)) as guest:
            await guest.ask("x=5; echo set")
            await guest.machine.checkpoint(tmp_path, leave_running=False)
            assert (await guest.machine.wait()).cause is ExitCause.EXITED
        assert await engine.sweep() == []
        async with running(engine, shell_spec(rootfs), tmp_path) as clone:
            assert await clone.ask("echo $x") == "5"

    async def test_a_paused_machine_can_be_saved_and_stays_paused(
        self, engine: Engine, rootfs: Path, tmp_path: Path
    ) -> None:
        async with running(engine, shell_spec(rootfs)) as guest:
            await guest.machine.pause()
            await guest.machine.checkpoint(tmp_path, leave_running=True)
            guest.send("echo late")
            with pytest.raises(TimeoutError):
                await guest.read_line(deadline_s=0.3)
            await guest.machine.resume()
            assert await guest.read_line() == "late"

    async def test_restoring_what_is_no_image_fails_cleanly(self, engine: Engine, rootfs: Path, tmp_path: Path) -> None:
        with pytest.raises(EngineFault):
            await engine.restore(shell_spec(rootfs), tmp_path)
        assert await engine.sweep() == []

    async def test_sweep_leaves_live_machines_alone(self, engine: Engine, rootfs: Path) -> None:
        async with running(engine, shell_spec(rootfs)) as guest:
            assert await engine.sweep() == []
            assert await guest.ask("echo alive") == "alive"

    async def test_an_image_finds_what_is_attached_at_its_restore(
        self, engine: Engine, rootfs: Path, tmp_path: Path
    ) -> None:
        image, kept = tmp_path / "image", tmp_path / "kept"
        image.mkdir()
        kept.mkdir()
        (kept / "note").write_text("outlives")
        async with running(engine, shell_spec(rootfs)) as guest:
            assert await guest.ask(f"cd {ATTACHMENTS}; for entry in *; do echo $entry; done") == "*"
            await guest.machine.checkpoint(image, leave_running=False)
        attachments = (
            Attachment(name="data", source=kept, read_only=False),
            Attachment(name="fixed", source=kept, read_only=True),
        )
        for origin in (image, None):
            async with running(engine, shell_spec(rootfs, attachments=attachments), origin) as guest:
                assert await guest.ask(f"cat {ATTACHMENTS}/data/note; echo") == "outlives"
                assert await guest.ask(f"echo new >{ATTACHMENTS}/data/new && echo written") == "written"
                assert await guest.ask(f"cat {ATTACHMENTS}/fixed/new") == "new"
                assert await guest.ask(f"(echo no >{ATTACHMENTS}/fixed/new) 2>/dev/null || echo refused") == "refused"
                assert await guest.ask(f"(echo no >{ATTACHMENTS}/stray) 2>/dev/null || echo refused") == "refused"
                (kept / "late").write_text("seen")
                assert await guest.ask(f"cat {ATTACHMENTS}/data/late; echo") == "seen"
            assert sorted(path.name for path in kept.iterdir()) == ["late", "new", "note"]

    async def test_a_checkpoint_keeps_hold_of_what_is_attached(
        self, engine: Engine, rootfs: Path, tmp_path: Path
    ) -> None:
        image, kept = tmp_path / "image", tmp_path / "kept"
        image.mkdir()
        kept.mkdir()
        (kept / "lines").write_text("one\ntwo\n")
        attached = (Attachment(name="data", source=kept, read_only=False),)
        async with running(engine, shell_spec(rootfs, attachments=attached)) as guest:
            assert await guest.ask(f"cd {ATTACHMENTS}/data; exec 3<lines; read x <&3; echo $x") == "one"
            await guest.machine.checkpoint(image, leave_running=False)
        (kept / "later").write_text("of the present")
        async with running(engine, shell_spec(rootfs, attachments=attached), image) as guest:
            assert await guest.ask("read x <&3; echo $x") == "two"
            assert await guest.ask("cat later; echo") == "of the present"
