"""PID 1's end of the zygote: starts it, has it fork kernels, and learns from it how they ended."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import signal
import socket
from collections.abc import Mapping
from typing import Any

from cellbox.guest import processes
from cellbox.guest.kernel import protocol
from cellbox.guest.kernel.link import Link
from cellbox.wire.frames import Kind

_START_SECONDS = 60.0  # matplotlib lists every font at its first import
_ANSWER_SECONDS = 10.0
_HARD_INTERRUPT = signal.SIGRTMIN + 5  # `process.HARD_INTERRUPT`; that module is not for PID 1
_RESEED = signal.SIGRTMIN + 6  # `process.RESEED`
ARCHIVE = __file__.partition("/cellbox/guest/")[0]
_BOOTSTRAP = "import sys; sys.path.insert(0, {0!r}); from cellbox.guest.kernel.zygote import main; main(3, {0!r})"


class KernelError(Exception):
    """A kernel could not be made or did not answer as it should."""


class Kernel:
    """One kernel process, as PID 1 sees it."""

    answer_seconds = _ANSWER_SECONDS
    title = "Python"
    """What it is called where its end is told of."""
    can_reseed = True
    """Whether its random state can be replaced."""

    def __init__(self, table: processes.Processes, link: Link, pid: int, ended: asyncio.Future[int]) -> None:
        self.link = link
        self.pid = pid
        self.ended = ended
        """Resolves to the wait status."""
        self.ran_out_of_memory = False
        self.must_reseed = False
        """Whether the next cell is to begin with fresh random state."""
        self.adoption: dict[str, Any] = {}
        """What `adopt` says beside the context's directory and variables."""
        self._table = table
        self._older_children: set[int] = set()
        self._interrupted: set[int] = set()

    async def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request whose answer comes soon, and return the answer. Raises `KernelError`."""
        link = self.link
        try:
            async with asyncio.timeout(self.answer_seconds):
                await link.request(json.dumps(request).encode())
                await asyncio.shield(link.milestone)
        except (TimeoutError, OSError) as error:
            raise KernelError(f"the kernel did not answer: {error or type(error).__name__}") from None
        if not link.has_answered:
            link.finish()
        said = b""
        while (item := await link.next()) is not None:
            if item.kind == Kind.CLOSE:
                return dict(json.loads(item.payload))
            said += item.payload
        raise KernelError(f"the kernel ended before it answered: {said[-500:].decode('utf-8', 'replace')}")

    async def warm_up(self) -> None:
        """Let a kernel that nobody has adopted touch the memory that cells need. Raises `KernelError`."""
        await self.ask(op="warm_up")
        self.link.become_idle()

    def note_children(self) -> None:
        """Remember which children there are before a cell, since interrupting the cell must not end those."""
        children = self._table.file(f"{self.pid}/task/{self.pid}/children").split()
        self._older_children = {int(pid) for pid in children}

    def note_adopted(self) -> None:
        """It has become a context's."""

    def note_end_of_cell(self) -> None:
        """A cell has ended, and the kernel lives on."""

    def reseed(self) -> None:
        """Have it draw other numbers than its clones: a cell that runs now, its threads, and every cell to come."""
        if self.can_reseed:
            self.must_reseed = True  # the signal may come a moment after the next cell has begun
            processes.send(self.pid, _RESEED)  # type: ignore[arg-type]

    def owns(self, pid: int) -> bool:
        """Tell whether the end of this process is the kernel's end."""
        return pid == self.pid

    def interrupt(self) -> None:
        """Interrupt the cell, and what it started, as Ctrl-C would."""
        self._interrupted = set(self._started_by_cell())
        processes.send(self.pid, signal.SIGINT)
        processes.send(self.pid, signal.SIGCONT)  # the cell may have stopped its own process
        for pid in self._interrupted:
            processes.send(pid, signal.SIGINT)

    def interrupt_hard(self) -> None:
        """Interrupt a cell that ignores SIGINT or swallows it, and kill what it started."""
        for pid in self._started_by_cell():
            processes.send(pid, signal.SIGKILL)
        processes.send(self.pid, _HARD_INTERRUPT)  # type: ignore[arg-type]

    def end_interrupted(self) -> None:
        """Kill what an interrupted cell leaves behind: a child that ignores SIGINT, whoever its parent is by now."""
        for pid in self._interrupted.union(self._started_by_cell()) & self._table.snapshot().keys():
            processes.send(pid, signal.SIGKILL)
        self._interrupted = set()

    async def kill(self) -> None:
        """End the kernel and everything that came from it."""
        if self.pid > 1:
            await self._table.kill_members(self.pid, b"")
        self.link.finish()

    def _started_by_cell(self) -> list[int]:
        table = self._table.snapshot()
        found = {self.pid}
        size = 0
        while size != len(found):
            size = len(found)
            found |= {
                pid for pid, process in table.items() if process.parent in found and pid not in self._older_children
            }
        return sorted(found - {self.pid})


class Launcher:
    """The zygote, and the kernels it has forked."""

    def __init__(self, table: processes.Processes) -> None:
        self._table = table
        self._control: socket.socket | None = None
        self._zygote_pid = 0
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)  # the template's: the user may remove theirs
        self._argv: list[str] = []
        self._environment: dict[str, str] = {}
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self._forked: asyncio.Future[tuple[int, asyncio.Future[int]]] | None = None
        self._ended: dict[int, asyncio.Future[int]] = {}
        self._turn = asyncio.Lock()
        self._embryo: Kernel | None = None
        self._boot: dict[str, Any] = {"root": "", "entropy": "", "env": {}, "limits": [], "cpus": []}

    async def start(self, python: str, environment: Mapping[str, str]) -> tuple[str, str]:
        """Start the zygote with this interpreter. Returns (its version, "") or ("", why there is no kernel)."""
        self._argv = [python, "-c", _BOOTSTRAP.format(ARCHIVE)]
        self._environment = dict(environment)
        loop = asyncio.get_running_loop()
        ours, theirs = protocol.packet_pair()
        log = os.memfd_create("zygote-errors", os.MFD_CLOEXEC)
        end = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 20)  # a dup2 onto itself would stay close-on-exec
        try:
            child = self._table.spawn(
                self._argv,
                env=self._environment,
                files=((self._null, 0), (log, 1), (log, 2), (end, 3)),
                in_template=True,
            )
            self._table.mark_zygote(child.pid)
            self._zygote_pid = child.pid
            theirs.close()
            os.close(end)  # so that the end of the zygote is the end of the connection
            end = -1
            ours.setblocking(False)
            self._control = ours
            self._ready = loop.create_future()
            loop.add_reader(ours.fileno(), self._on_control)
            try:
                answer = await asyncio.wait_for(self._ready, _START_SECONDS)
            except (TimeoutError, ConnectionError):
                answer = {}
            if "ready" in answer:
                return str(answer["ready"]), ""
            self.close()
            size = os.lseek(log, 0, os.SEEK_END)
            tail = os.pread(log, 2000, max(0, size - 2000)).decode("utf-8", "replace").strip()
            return "", str(answer.get("problem") or f"the kernel runtime did not start: {tail or 'no word from it'}")
        except OSError as error:
            ours.close()
            return "", f"{python} could not be started: {error.strerror}"
        finally:
            theirs.close()
            for fd in (log, end):
                if fd >= 0:
                    os.close(fd)

    @property
    def boot(self) -> dict[str, Any]:
        """What every kernel is told to become."""
        return self._boot

    def configure(
        self, *, root: str, entropy: str, env: Mapping[str, str], limits: list[list[int]], cpus: list[int]
    ) -> None:
        """Say what every kernel forked from now on is to become."""
        self._boot = {"root": root, "entropy": entropy, "env": dict(env), "limits": limits, "cpus": cpus}

    async def prepare(self) -> None:
        """Fork the first kernel ahead of the checkpoint: a fork takes 100 ms and more under gVisor, the rest 10."""
        async with self._turn:
            self._embryo = await self._fork()

    async def fork(self) -> Kernel:
        """Return a fresh kernel that waits to be adopted. Raises `KernelError`."""
        async with self._turn:
            embryo, self._embryo = self._embryo, None
            if embryo is not None and not embryo.ended.done():
                return await self._make_ready(embryo)
            if self._control is not None:
                try:
                    return await self._make_ready(await self._fork())
                except KernelError:
                    if self._control is not None:
                        raise
            # A user's process killed the zygote, maybe just now.
            _version, problem = await self.start(self._argv[0], self._environment)
            if problem:
                raise KernelError(problem)
            return await self._make_ready(await self._fork())

    async def _fork(self) -> Kernel:
        assert self._control is not None
        loop = asyncio.get_running_loop()
        ours, theirs = protocol.packet_pair()
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        self._forked = loop.create_future()
        token = b"\x00" + secrets.token_bytes(protocol.TOKEN_BYTES - 1)
        link = Link(ours, (out, err), token)
        try:
            processes.send(self._zygote_pid, signal.SIGCONT)  # a user's process may have stopped it with all others
            socket.send_fds(self._control, [b"fork"], [theirs.fileno(), out_end, err_end])
            pid, ended = await asyncio.wait_for(self._forked, _ANSWER_SECONDS)
        except (OSError, TimeoutError) as error:
            link.close()
            raise KernelError(f"no kernel could be forked: {error}") from None
        finally:
            theirs.close()
            os.close(out_end)
            os.close(err_end)
        kernel = Kernel(self._table, link, pid, ended)
        await self._ask(kernel, op="connect", token=token.hex())
        return kernel

    async def _make_ready(self, kernel: Kernel) -> Kernel:
        """Make a forked kernel this sandbox's own."""
        await self._ask(kernel, op="boot", **self._boot)
        link = kernel.link
        if link.peer_pid > 0:
            kernel.pid = link.peer_pid  # the zygote reports pids of its own namespace
        link.become_idle()
        return kernel

    async def _ask(self, kernel: Kernel, **request: Any) -> None:
        answer = await kernel.ask(**request)
        if answer.get("type") != "ready":
            raise KernelError(str(answer))

    def close(self) -> None:
        """Hang up; the zygote ends by itself."""
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        embryo, self._embryo = self._embryo, None
        if embryo is not None:
            embryo.link.close()
        lost = ConnectionError("the zygote is gone")
        for future in (self._ready, self._forked):
            if future is not None and not future.done():
                future.set_exception(lost)

    def _on_control(self) -> None:
        assert self._control is not None
        try:
            while True:
                message = self._control.recv(65536)
                if not message:
                    self.close()
                    return
                self._take(json.loads(message))
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            self.close()

    def _take(self, message: dict[str, Any]) -> None:
        if "forked" in message and self._forked is not None and not self._forked.done():
            pid = int(message["forked"])
            ended = self._ended[pid] = asyncio.get_running_loop().create_future()
            self._forked.set_result((pid, ended))  # both, for its end may be the next message
        elif "ended" in message:
            future = self._ended.pop(int(message["ended"]), None)
            if future is not None and not future.done():
                future.set_result(int(message["status"]))
        elif self._ready is not None and not self._ready.done():
            self._ready.set_result(message)
