"""Code contexts: who may run cells in which kernel, and in what order.

Cells of one context run one after another in the order of arrival. A kernel that had to be killed, or that died, is
replaced under the same context id, and the cells that wait run in the new one. What background work prints between two
cells comes with the next one (up to 64 KiB, the rest is counted).

Python runs in kernels forked from the zygote; every other language is a Jupyter kernelspec of the sandbox, looked up
when it is asked for, so one that was installed a moment ago is there.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from cellbox.guest import processes, system
from cellbox.guest.channel import Handler, Refusal, Stream
from cellbox.guest.kernel import kernelspecs
from cellbox.guest.kernel.bridges import BridgeLauncher
from cellbox.guest.kernel.execution import Execution
from cellbox.guest.kernel.launcher import Kernel, KernelError, Launcher
from cellbox.guest.kernel.spares import Spares
from cellbox.wire.messages import (
    CellDone,
    CloseContext,
    Configure,
    ContextInfo,
    ContextList,
    CreateContext,
    Done,
    InterruptContext,
    Interrupted,
    LanguageList,
    ListContexts,
    ListLanguages,
    Request,
    RestartContext,
    RunCell,
)

MAX_CONTEXTS = 32
"""Per sandbox. Its memory is the nearer bound in most: see `KERNEL_BYTES`."""
PYTHON = "python"
SPARES = 2
"""Kernels kept ready, once a context beside the first was asked for."""
KERNEL_BYTES = 64 * 1024**2
"""What a kernel must find free to be made: gVisor copies 2 MB wherever a fork writes first, 58 MB in all."""
_LIMITS = (resource.RLIMIT_NPROC, resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)


class _Context:
    """One context. Its kernel is None while none was needed since the last one ended."""

    def __init__(self, context_id: str, language: str, cwd: str, env: dict[str, str]) -> None:
        self.id = context_id
        self.language = language
        self.cwd = cwd
        self.env = env
        self.kernel: Kernel | None = None
        self.turn = asyncio.Lock()
        self.running: Execution | None = None
        self.waiting = 0
        self.cells = 0
        self.threads = 0
        self.is_closed = False

    def info(self) -> ContextInfo:
        return ContextInfo(
            context_id=self.id,
            language=self.language,
            cells=self.cells,
            is_busy=self.running is not None or self.waiting > 0,
        )


class Contexts:
    """All contexts of the sandbox."""

    def __init__(self, table: processes.Processes) -> None:
        self.python = ""
        """Version of the Python that runs cells; empty when there is none."""
        self.problem = ""
        """Why there is none."""
        self._table = table
        self._program = ""
        self._boot: dict[str, Any] = {}
        self._environment: dict[str, str] = {}
        self._python: Launcher | None = None
        self._contexts: dict[str, _Context] = {}
        self._spares: Spares | None = None
        self.free_bytes: Callable[[], int | None] = lambda: None
        """Tells how much of the sandbox's memory is left; None where nobody counts."""
        self._added: dict[str, str] = {}
        """Variables that came after the first kernel was made ready."""

    def handlers(self) -> dict[type[Request], Handler]:
        return {
            CreateContext: self._create,
            RunCell: self._run,
            InterruptContext: self._interrupt,
            RestartContext: self._restart,
            CloseContext: self._close,
            ListContexts: self._list,
            ListLanguages: self._languages,
        }

    async def start(self, environment: Mapping[str, str], python: str = "") -> tuple[str, str]:
        """Start the zygote, with the template's `python3` if none is named. Returns (its version, problem).

        To be called before the checkpoint, from the template's root.
        """
        program = python or shutil.which("python3", path=environment.get("PATH")) or ""
        if not program:
            self.problem = "the template has no python3"
            return "", self.problem
        self._program = program
        launcher = Launcher(self._table)
        self.python, self.problem = await launcher.start(program, environment)
        if self.python:
            try:
                await launcher.prepare()
            except KernelError as error:
                self.python, self.problem = "", str(error)
            else:
                self._python = launcher
        return self.python, self.problem

    async def configure(self, request: Configure, environment: Mapping[str, str], root: str = system.USER_ROOT) -> None:
        """Make the kernels to come this sandbox's own, and have the first one ready for its context."""
        limits = [[kind, *resource.getrlimit(kind)] for kind in _LIMITS]
        self._environment = dict(environment)
        self._boot = {
            "root": root,
            "entropy": request.entropy,
            "env": self._environment,
            "limits": limits,
            "cpus": sorted(os.sched_getaffinity(0)),
        }
        if self._python is None:
            return
        self._python.configure(**self._boot)
        self._spares = Spares(self._python)
        await self._spares.keep(1).wait()

    async def warm_up(self) -> None:
        """Have the first kernel go through a cell's motions: under gVisor the first one costs 10 ms more."""
        if self._spares is not None:
            await self._spares.warm_up()

    def extend_environment(self, variables: Mapping[str, str]) -> None:
        """Add to the environment of every kernel, also of those that are ready."""
        self._added = dict(variables)
        self._environment.update(variables)
        if self._python is not None and variables:
            self._python.configure(**self._boot)

    def activity(self) -> tuple[int, int]:
        """Return (cells in progress or waiting, kernels that have threads of their own between cells)."""
        contexts = self._contexts.values()
        busy = sum(context.waiting + (context.running is not None) for context in contexts)
        return busy, sum(context.threads > 0 for context in contexts if context.running is None)

    def renew(self, entropy: str) -> None:
        """This is a clone: no kernel there is, or to come, may draw the numbers that the original draws."""
        self._boot["entropy"] = entropy
        kernels = [context.kernel for context in self._contexts.values() if context.kernel is not None]
        if self._python is not None:
            self._python.configure(**self._boot)
        if self._spares is not None:
            kernels += self._spares.ready()
        for kernel in kernels:
            kernel.reseed()

    def note_out_of_memory(self, pid: int) -> bool:
        """Take note that this process is about to be killed for its memory. True when it is a kernel."""
        for context in self._contexts.values():
            if context.kernel is not None and context.kernel.owns(pid):
                context.kernel.ran_out_of_memory = True
                return True
        return False

    async def close(self) -> None:
        """End every kernel and the zygote."""
        for context in list(self._contexts.values()):
            await self._end(context)
        if self._spares is not None:
            await self._spares.end()
        if self._python is not None:
            self._python.close()

    # ----------------------------------------------------------------------------------------------- operations

    async def _create(self, _stream: Stream, request: CreateContext) -> ContextInfo:
        language, _launcher = self._launcher(request.language)
        if request.context_id in self._contexts:
            raise Refusal("invalid_request", f"there is a context {request.context_id!r} already")
        if len(self._contexts) >= MAX_CONTEXTS:
            raise Refusal("context_limit", f"a sandbox has at most {MAX_CONTEXTS} contexts; close one first")
        if not self._has_spare(language) and not self._has_room(1):
            raise Refusal(
                "context_limit",
                f"a further context needs {KERNEL_BYTES >> 20} MB of memory, and the {len(self._contexts)} there are "
                "and all else have left less: close one, or give the sandbox more memory",
            )
        cwd = request.cwd or _default_directory()
        context = _Context(request.context_id, language, cwd, request.env)
        self._contexts[context.id] = context
        try:
            await self._kernel(context)
        except BaseException:
            self._contexts.pop(context.id, None)
            raise
        return context.info()

    async def _run(self, stream: Stream, request: RunCell) -> CellDone:
        context = self._find(request.context_id)
        context.waiting += 1
        try:
            is_mine = await _take_turn(context.turn, stream)
        finally:
            context.waiting -= 1
        if not is_mine:
            return CellDone(
                outcome="interrupted", reason="cancelled", exit=1, hint="The cell was given up before it ran."
            )
        try:
            if stream.is_orphaned:
                raise Refusal("cancelled", "the sandbox was restored before the cell's turn came")
            if context.is_closed:
                raise Refusal("context_not_found", f"context {context.id!r} was closed before the cell's turn came")
            return await self._execute(context, stream, request)
        finally:
            context.turn.release()

    async def _execute(self, context: _Context, stream: Stream, request: RunCell) -> CellDone:
        kernel = await self._kernel(context)
        execution = context.running = Execution(kernel, stream, request)
        context.cells += 1
        try:
            done = await execution.run()
        except BaseException:
            execution.is_dead = True  # whatever it was, the kernel's state is unknown
            raise
        finally:
            context.running = None
            if execution.is_dead:
                await self._discard(context)
                if context.language == PYTHON and self._spares is not None:
                    self._spares.keep(1)
        context.threads = done.background_threads
        return done

    async def _interrupt(self, _stream: Stream, request: InterruptContext) -> Interrupted:
        running = self._find(request.context_id).running
        if running is not None:
            running.stop("interrupt")
        return Interrupted(was_busy=running is not None)

    async def _restart(self, _stream: Stream, request: RestartContext) -> ContextInfo:
        context = self._find(request.context_id)
        running = context.running
        if running is not None:
            running.stop("restart")
            async with context.turn:
                pass  # the running cell has answered and let its kernel go
        if context.running is None and (running is None or context.kernel is not None):
            await self._discard(context)
        await self._kernel(context)
        context.cells = 0
        return context.info()

    async def _close(self, _stream: Stream, request: CloseContext) -> Done:
        await self._end(self._find(request.context_id))
        return Done()

    async def _list(self, _stream: Stream, _request: ListContexts) -> ContextList:
        return ContextList(contexts=[context.info() for context in self._contexts.values()])

    async def _languages(self, _stream: Stream, _request: ListLanguages) -> LanguageList:
        return LanguageList(languages=self._names())

    # -------------------------------------------------------------------------------------------------- kernels

    def _find(self, context_id: str) -> _Context:
        context = self._contexts.get(context_id)
        if context is None:
            raise Refusal("context_not_found", f"there is no context {context_id!r}")
        return context

    def _launcher(self, language: str) -> tuple[str, Launcher | BridgeLauncher]:
        """Return a language's own name and what starts its kernels."""
        if language == PYTHON and self._python is not None:
            return PYTHON, self._python
        specs = kernelspecs.find(self._environment) if self._program else []
        spec = kernelspecs.choose(specs, language)
        if spec is not None:
            name = spec.name if language.lower() == spec.name else spec.language
            launcher = BridgeLauncher(
                self._table, spec, python=self._program, environment=self._environment, boot=self._boot
            )
            return name, launcher
        there = ", ".join(self._names()) or "none"
        why = f" ({self.problem})" if language == PYTHON and self.problem else ""
        raise Refusal("unknown_language", f"no kernel for {language!r} in this template{why}; there is: {there}")

    def _names(self) -> list[str]:
        specs = kernelspecs.find(self._environment) if self._program else []
        return sorted({*kernelspecs.names(specs), *([PYTHON] if self._python is not None else [])})

    async def _kernel(self, context: _Context) -> Kernel:
        """Return the context's kernel, a fresh one if it has none."""
        if context.kernel is not None:
            return context.kernel
        _name, launcher = self._launcher(context.language)
        kernel: Kernel | None = None
        try:
            if context.language == PYTHON and self._spares is not None:
                kernel = await self._spares.take()
            if kernel is None:
                kernel = await launcher.fork()
            answer: dict[str, Any] = await kernel.ask(
                op="adopt", cwd=context.cwd, env={**self._added, **context.env}, **kernel.adoption
            )
        except KernelError as error:
            if kernel is not None:
                await kernel.kill()
                kernel.link.close()
            raise Refusal("internal", str(error)) from None
        if answer.get("type") != "ready":
            await kernel.kill()
            kernel.link.close()
            raise Refusal("invalid_request", str(answer.get("message")))
        kernel.note_adopted()
        kernel.link.become_idle()
        context.kernel = kernel
        if context.language == PYTHON and self._spares is not None and len(self._contexts) > 1:
            # Who needed a second kernel is likely to need a third; not before this one is up.
            for count in range(1, SPARES + 1):
                if self._has_room(1 + count):
                    self._spares.keep(count)
        return kernel

    def _has_spare(self, language: str) -> bool:
        return language == PYTHON and self._spares is not None and self._spares.count > 0

    def _has_room(self, kernels: int) -> bool:
        free = self.free_bytes()
        return free is None or free >= kernels * KERNEL_BYTES

    async def _discard(self, context: _Context) -> None:
        kernel, context.kernel, context.threads = context.kernel, None, 0
        if kernel is not None:
            await kernel.kill()
            kernel.link.close()

    async def _end(self, context: _Context) -> None:
        self._contexts.pop(context.id, None)
        context.is_closed = True
        if context.running is not None:
            context.running.stop("closed")
        async with context.turn:
            await self._discard(context)


def _default_directory() -> str:
    return system.DEFAULT_DIRECTORY if os.path.isdir(system.DEFAULT_DIRECTORY) else "/"


async def _take_turn(turn: asyncio.Lock, stream: Stream) -> bool:
    """Wait for the lock. False when the caller gave up first."""
    if not turn.locked():
        await turn.acquire()
        return True
    acquired = asyncio.ensure_future(turn.acquire())
    cancelled = asyncio.ensure_future(stream.cancelled.wait())
    try:
        await asyncio.wait([acquired, cancelled], return_when=asyncio.FIRST_COMPLETED)
    finally:
        cancelled.cancel()
    if acquired.done() and not stream.cancelled.is_set():
        return True
    if acquired.done():
        turn.release()
    else:
        acquired.cancel()
    return False
