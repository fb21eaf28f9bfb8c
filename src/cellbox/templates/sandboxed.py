"""Runs one step of a build inside the real engine: no network, no host file but its inputs, the new root writable.

This is the only way in which code of packages and of recipes runs. It needs no guest of ours and nothing but a shell
(or the private interpreter) in the root, so it works for any of them.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shlex
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cellbox.engines.base import Bind, Engine, EngineFault, Machine, MachineSpec
from cellbox.templates.events import Step, StepError
from cellbox.templates.guest_program import GUEST_ENV, INTERPRETER

INPUT = "/.cellbox/in"
"""Where a step finds its inputs, read-only. The mount point exists in every template."""
OUTPUT = "/.cellbox/out"
"""Where a step that builds another root filesystem finds it, writable."""
INSIDE = Path(__file__).parent / "inside"
"""Programs of ours for the private interpreter; they run in sandboxes only."""

# How PID 1 ended is the engine's business, told in words; the exit code of a step travels as a last line that nothing
# the step prints can be mistaken for.
_HARNESS = """
import sys, traceback
_, marker, name, source, *arguments = sys.argv
sys.argv = [name, *arguments]
try:
    exec(compile(source, name, "exec"), {"__name__": "__main__"})
    code = 0
except SystemExit as exit:
    code = exit.code if isinstance(exit.code, int) else 1
    print(exit.code)
except BaseException:
    traceback.print_exc(file=sys.stdout)
    code = 1
print(f"\\n{marker} {code}", flush=True)
"""

_MEMORY_MB, _DISK_MB, _TASKS = 2048, 1024, 512
_LINE_BYTES = 64 * 1024
_READ_BYTES = 256 * 1024


class Workbench:
    """Runs the steps of one build in sandboxes over one root filesystem."""

    def __init__(self, engine: Engine, rootfs: Path, env: Mapping[str, str], *, timeout_seconds: float = 1800) -> None:
        self._engine = engine
        self._rootfs = rootfs
        self._env = {**GUEST_ENV, **env, "DEBIAN_FRONTEND": "noninteractive", "DEBCONF_NONINTERACTIVE_SEEN": "true"}
        self._timeout = timeout_seconds

    async def shell(self, script: str, step: Step, *, inputs: Path | None = None) -> None:
        """Run shell text, as root in `/root`, that may change the root filesystem.

        Raises `StepError` unless it ended with 0.
        """
        marker = secrets.token_hex(16)
        # /dev is an empty file system of the machine's own; Python's process pools need shared memory in it.
        step_command = shlex.join(["/bin/sh", "-e", "-c", script])
        wrapper = f'mkdir -m 1777 -p /dev/shm; cd /root; ( {step_command} ) 2>&1; echo "\n{marker} $?"'
        await self._run(("/bin/sh", "-c", wrapper), marker, step, inputs=inputs)

    async def program(
        self,
        name: str,
        arguments: Sequence[str],
        step: Step,
        *,
        inputs: Path | None = None,
        output: Path | None = None,
    ) -> None:
        """Run one of our own programs (`inside/NAME.py`) with the private interpreter.

        With `output` the root filesystem is read-only and only that directory can be written to.
        """
        source = (INSIDE / f"{name}.py").read_text()
        marker = secrets.token_hex(16)
        argv = (*INTERPRETER, "-c", _HARNESS, marker, name, source, *arguments)
        await self._run(argv, marker, step, inputs=inputs, output=output)

    async def _run(
        self, argv: tuple[str, ...], marker: str, step: Step, *, inputs: Path | None, output: Path | None = None
    ) -> None:
        binds: list[Bind] = []
        if inputs is not None:
            binds.append(Bind(host_path=inputs, guest_path=INPUT, read_only=True))
        if output is not None:
            binds.append(Bind(host_path=output, guest_path=OUTPUT, read_only=False))
        spec = MachineSpec(
            machine_id=str(uuid.uuid4()),
            rootfs=self._rootfs,
            argv=argv,
            env=self._env,
            memory_mb=_MEMORY_MB,
            disk_mb=_DISK_MB,
            cpu=float(os.cpu_count() or 1),
            tasks=_TASKS,
            binds=tuple(binds),
            writable_root=output is None,
        )
        code = await self._boot_and_follow(spec, step, marker)
        if code:
            raise StepError(f"ended with exit code {code}", exit_code=code)

    async def _boot_and_follow(self, spec: MachineSpec, step: Step, marker: str) -> int:
        try:
            machine = await self._engine.boot(spec)
        except EngineFault as error:
            raise StepError(f"no sandbox for this step: {error}") from error
        exit_code: int | None = None
        ending = re.compile(rf"{marker} (\d+)")

        def take(line: str) -> None:
            nonlocal exit_code
            if match := ending.fullmatch(line.strip()):
                exit_code = int(match[1])
            elif line.strip():
                step.log(line)

        try:
            os.close(machine.channel.writer)  # no input: whatever asks a question gets its end at once
            async with asyncio.timeout(self._timeout):
                await asyncio.gather(
                    follow_lines(machine.channel.reader, take), follow_lines(machine.channel.console, take)
                )
                detail = (await machine.wait()).detail
        except TimeoutError:
            raise StepError(f"did not end within {self._timeout:.0f} s") from None
        finally:
            await give_back(machine, close_writer=False)
        if exit_code is None:
            raise StepError(f"the sandbox of this step ended early: {detail}")
        return exit_code


async def give_back(machine: Machine, *, close_writer: bool = True) -> None:
    """Kill a machine and close our ends of its channel, whatever state it is in."""
    channel = machine.channel
    try:
        await asyncio.shield(machine.kill())
    finally:
        for descriptor in (channel.reader, channel.console, *([channel.writer] if close_writer else [])):
            with suppress(OSError):
                os.close(descriptor)


async def read_available(descriptor: int) -> bytes:
    """Wait until a non-blocking descriptor has bytes and return them; empty at its end."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            readable = asyncio.Event()
            loop.add_reader(descriptor, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(descriptor)


async def follow_lines(descriptor: int, take: Callable[[str], None]) -> None:
    """Hand every line from a non-blocking descriptor to `take` until its end; overlong lines come in pieces."""
    buffer = bytearray()
    while data := await read_available(descriptor):
        buffer += data
        *lines, rest = buffer.split(b"\n")
        for line in lines:
            take(line.decode(errors="replace"))
        buffer = bytearray(rest)
        if len(buffer) > _LINE_BYTES:
            take(buffer.decode(errors="replace"))
            buffer.clear()
    if buffer:
        take(buffer.decode(errors="replace"))
