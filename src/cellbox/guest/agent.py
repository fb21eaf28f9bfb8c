"""PID 1 of a sandbox: starts, says hello, waits to be configured, then answers what the host asks until it is gone.

A checkpoint is taken between hello and `Configure`, so everything slow happens before (imports, the zygote) and
everything that makes one sandbox differ from another after.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Literal, NoReturn

from cellbox import _version
from cellbox.guest import commands, files, memory, processes, system, watch
from cellbox.guest.channel import Channel, Handler, Refusal, Stream
from cellbox.guest.contexts import Contexts
from cellbox.guest.foreground import Foreground
from cellbox.guest.shells import Shells
from cellbox.wire import frames
from cellbox.wire.messages import (
    Activity,
    Configure,
    Configured,
    Continue,
    CreateContext,
    Done,
    HandOver,
    Hello,
    LogLine,
    Outcome,
    Ping,
    Quiesce,
    ReadActivity,
    Renew,
    Request,
    RunCell,
)

IN_PLACE = "--in-place"
"""Argument that leaves namespaces, mounts and limits alone, for running outside a sandbox in tests."""

_LINE_BYTES = 8 * 1024
_READ_BYTES = 64 * 1024


class Agent:
    """Everything PID 1 does, put together."""

    def __init__(self, *, in_place: bool) -> None:
        self._in_place = in_place
        self._template_env = dict(os.environ)
        self._problems = [] if in_place else system.prepare()
        self._namespace: system.Namespace | None = None
        self._processes = processes.Processes()
        self._commands = commands.Commands(self._processes)
        self._shells = Shells(self._processes, self._commands)
        self._foreground = Foreground(self._commands, self._shells)
        self._contexts = Contexts(self._processes)
        self._watcher = memory.Watcher(self._processes, self._foreground, self._contexts, self._log)
        self._contexts.free_bytes = self._watcher.free_bytes
        self._watches = watch.Watches()
        self._commands.on_start = self._shells.on_start = self._watcher.wake
        self._is_configured = False
        self._is_ahead = False
        self._background: set[asyncio.Task[None]] = set()
        self._channel = Channel(0, 1, self._handlers())

    async def run(self) -> None:
        """Serve until the host is gone."""
        self._processes.start()
        if self._in_place:
            system.adopt_orphans()
        else:
            self._enter_namespace()
        await self._contexts.start(self._template_env)
        gc.collect()
        gc.freeze()
        self._channel.start(
            Hello(
                version=frames.VERSION,
                guest_version=_version.__version__,
                python=self._contexts.python,
                kernel_problem=self._contexts.problem,
            )
        )
        await self._channel.closed.wait()

    def end(self) -> NoReturn:
        """End every process of the sandbox and this one."""
        if self._namespace is not None:
            self._namespace.close()
        else:
            for pid in (*self._processes.snapshot(), *self._processes.own()):
                if pid != os.getpid():
                    processes.send(pid, signal.SIGKILL)
        os._exit(0)

    def _handlers(self) -> dict[type[Request], Handler]:
        handlers: dict[type[Request], Handler] = {
            **files.handlers(),
            **self._watches.handlers(),
            **self._commands.handlers(),
            **self._shells.handlers(),
            **self._contexts.handlers(),
            ReadActivity: self._read_activity,
            Quiesce: self._quiesce,
            Continue: self._continue,
            Renew: self._renew,
        }
        for operation in (CreateContext, RunCell):
            if operation in handlers:
                handlers[operation] = self._watched(handlers[operation])
        guarded = {operation: self._guarded(handler) for operation, handler in handlers.items()}
        return {**guarded, Configure: self._configure, HandOver: self._hand_over, Ping: self._ping}

    def _guarded(self, handler: Handler) -> Handler:
        async def answer(stream: Stream, request: Request) -> Outcome:
            if not self._is_configured:
                raise Refusal("invalid_request", "the guest has not been configured yet")
            return await handler(stream, request)

        return answer

    def _watched(self, handler: Handler) -> Handler:
        async def answer(stream: Stream, request: Request) -> Outcome:
            self._watcher.wake()
            return await handler(stream, request)

        return answer

    async def _ping(self, _stream: Stream, _request: Ping) -> Done:
        return Done()

    async def _read_activity(self, _stream: Stream, _request: ReadActivity) -> Activity:
        cells, threads = self._contexts.activity()
        # The start command and whatever else is left: all but kernels and what belongs to commands in progress.
        is_busy = self._foreground.running
        busy = self._foreground.members(self._processes.snapshot()) if is_busy else self._foreground.waiting()
        background = len(self._processes.background(busy))
        return Activity(commands=is_busy + cells, background_processes=background + threads)

    async def _configure(self, _stream: Stream, request: Configure) -> Configured:
        if self._is_configured or self._is_ahead:
            raise Refusal("invalid_request", "the guest has been configured already")
        problems = list(self._problems)
        if not self._in_place:
            problems += self._take_over_root(request)
        env = {**self._template_env, **request.env}
        shell = self._commands.configure(env)
        await self._contexts.configure(request, env, "/" if self._in_place else system.USER_ROOT)
        self._watches.configure(["/"] if request.files_root else list(request.attached))
        if request.files_root:
            self._processes.roots.narrow(request.files_root)
        if request.ahead:
            await self._contexts.warm_up()
            self._is_ahead = True
        else:
            self._open(request.start_command)
        return Configured(python=self._contexts.python, shell=shell, problems=problems)

    async def _quiesce(self, _stream: Stream, _request: Quiesce) -> Done:
        return Done()  # the channel falls silent once this is sent

    async def _continue(self, _stream: Stream, _request: Continue) -> Done:
        self._channel.resume()
        return Done()

    async def _renew(self, stream: Stream, request: Renew) -> Configured:
        self._channel.start_afresh(stream)
        problems: list[str] = []
        if request.hostname:
            if not self._in_place:
                problems = system.rename_machine(request.hostname, request.entropy)
            self._contexts.renew(request.entropy)
        return Configured(python=self._contexts.python, problems=problems)

    async def _hand_over(self, _stream: Stream, request: HandOver) -> Done:
        if not self._is_ahead:
            raise Refusal("invalid_request", "the guest was not configured ahead, or is somebody's already")
        self._is_ahead = False
        self._commands.extend_environment(request.env)
        self._contexts.extend_environment(request.env)
        self._open(request.start_command)
        return Done()

    def _open(self, start_command: str) -> None:
        """From now on everything that is asked is done."""
        self._is_configured = True
        if start_command:
            self._keep(self._run_start_command(start_command))

    def _take_over_root(self, request: Configure) -> list[str]:
        assert self._namespace is not None
        problems = system.mount_user_root(request)
        self._namespace.mount_proc()
        disk = system.open_disk()
        self._processes.roots.enter_user()
        system.name_machine(request.hostname, request.entropy)
        for path, name in request.attached.items():
            self._attach(path, name, read_only=path in request.read_only)
        problems += system.limit(request.tasks, request.cpus)
        self._watcher.configure(request.memory_mb, request.tasks, disk)
        return problems

    def _attach(self, path: str, name: str, *, read_only: bool) -> None:
        # Resolved in the user's root, where a link of the template's can't lead out; mounted from the template's.
        target = system.make_mount_point(path)
        self._processes.roots.enter_template()
        try:
            system.mount_attachment(name, target, read_only=read_only)
        finally:
            self._processes.roots.leave_template()

    def _enter_namespace(self) -> None:
        self._namespace = system.Namespace()
        self._processes.mark_own(self._namespace.pid)
        self._processes.namespace_pid = self._namespace.pid
        self._processes.on_namespace_lost = self._renew_namespace

    def _renew_namespace(self) -> None:
        # `kill -9 1`, typed inside. Files and this agent are still there: everything else can be started again.
        self._log("the first process of the sandbox was killed and every other one with it; starting afresh")
        assert self._namespace is not None
        self._namespace.close()
        self._processes.roots.enter_template()
        try:
            self._enter_namespace()
            if self._is_configured:
                self._namespace.mount_proc()
        finally:
            self._processes.roots.leave_template()

    def _log(self, text: str, stream: Literal["stdout", "stderr", "system"] = "system") -> None:
        self._channel.log(LogLine(stream=stream, text=text))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _run_start_command(self, text: str) -> None:
        try:
            child, stdout, stderr = self._commands.start(text)
        except Refusal as refusal:
            self._log(f"the template's start command: {refusal}")
            return
        self._watcher.wake()
        _Lines(stdout, partial(self._log, stream="stdout"))
        _Lines(stderr, partial(self._log, stream="stderr"))
        code, number = processes.exit_code(await child.status)
        how = f"by signal {number}" if number else f"with exit code {code}"
        self._log(f"the template's start command has ended {how}")


class _Lines:
    """Reads a pipe to its end and hands out its lines; longer ones come in pieces."""

    def __init__(self, descriptor: int, take: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._take = take
        self._rest = b""
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) >= _LINE_BYTES or not data:
            lines, rest = [*lines, rest], b""
        self._rest = rest
        for line in lines:
            for start in range(0, len(line), _LINE_BYTES):
                self._take(line[start : start + _LINE_BYTES].decode(errors="replace"))
        if not data:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)


def main() -> NoReturn:
    """Run the guest. Never returns."""
    agent = Agent(in_place=IN_PLACE in sys.argv[1:])
    asyncio.run(agent.run())
    agent.end()
