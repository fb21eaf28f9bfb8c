"""PID 1's end of kernels of other languages: a bridge process for each, started when a context is made."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import os
import secrets
import signal
from collections.abc import Mapping
from typing import Any

from cellbox.guest import processes
from cellbox.guest.kernel import protocol
from cellbox.guest.kernel.kernelspecs import Kernelspec
from cellbox.guest.kernel.launcher import ARCHIVE, Kernel, KernelError
from cellbox.guest.kernel.link import Link

_BOOTSTRAP = "import sys; sys.path.insert(0, {0!r}); from cellbox.guest.kernel.bridge import main; main({0!r})"


class BridgeKernel(Kernel):
    """A bridge and the Jupyter kernel under it, as PID 1 sees them."""

    answer_seconds = 50.0
    """A kernel of another language takes seconds to start, more on a busy host."""
    can_reseed = False

    def __init__(
        self, table: processes.Processes, link: Link, pid: int, ended: asyncio.Future[int], spec: Kernelspec
    ) -> None:
        super().__init__(table, link, pid, ended)
        self.title = spec.language
        self.adoption = {"spec": dataclasses.asdict(spec)}

    def note_children(self) -> None:
        """Remember everything below the bridge: the kernel, and interpreters that it runs."""
        self._older_children = self._table.members(self.pid, b"", self._table.snapshot())

    def note_adopted(self) -> None:
        """The kernel and what it has started so far are no background processes of the user's."""
        for pid in self._table.members(self.pid, b"", self._table.snapshot()):
            self._table.mark_kernel(pid)

    def note_end_of_cell(self) -> None:
        """A shell that a kernel wraps may have ended with `exit`; the one begun anew is no background process."""
        table = self._table.snapshot()
        kernels = {pid for pid, process in table.items() if process.parent == self.pid}
        for pid, process in table.items():
            if process.parent in kernels and process.name == self.title:
                self._table.mark_kernel(pid)

    def interrupt(self) -> None:
        """Interrupt the cell. What to do about processes that the cell started is the Jupyter kernel's business first:
        one that gets its SIGINT twice may end before its shell expects it."""
        self._interrupted = set(self._started_by_cell())
        processes.send(self.pid, signal.SIGINT)

    def owns(self, pid: int) -> bool:
        process = self._table.snapshot().get(pid)
        return pid == self.pid or (process is not None and process.parent == self.pid)

    def _started_by_cell(self) -> list[int]:
        return sorted(self._table.members(self.pid, b"", self._table.snapshot()) - self._older_children - {self.pid})


class BridgeLauncher:
    """Starts kernels of one kernelspec."""

    def __init__(
        self,
        table: processes.Processes,
        spec: Kernelspec,
        *,
        python: str,
        environment: Mapping[str, str],
        boot: Mapping[str, Any],
    ) -> None:
        self._table = table
        self._spec = spec
        self._python = python
        self._environment = environment
        self._boot = boot

    async def fork(self) -> BridgeKernel:
        """Return a fresh bridge that waits to be adopted. Raises `KernelError`."""
        ours, theirs = protocol.packet_pair()
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        # Out of the way of 0 to 3: a dup2 onto itself would stay close-on-exec.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (null, out_end, err_end, theirs.fileno())]
        link = Link(ours, (out, err), b"\x00" + secrets.token_bytes(protocol.TOKEN_BYTES - 1))
        try:
            child = self._table.spawn(
                [self._python, "-c", _BOOTSTRAP.format(ARCHIVE)],
                env=self._environment,
                files=tuple(zip(high, range(4), strict=True)),
                in_template=True,
            )
        except OSError as error:
            link.close()
            raise KernelError(f"{self._python} could not be started: {error.strerror}") from None
        finally:
            theirs.close()
            for fd in (null, out_end, err_end, *high):
                os.close(fd)
        self._table.mark_kernel(child.pid)
        kernel = BridgeKernel(self._table, link, child.pid, child.status, self._spec)
        try:
            for request in ({"op": "connect", "token": link.token.hex()}, {"op": "boot", **self._boot}):
                answer = await kernel.ask(**request)
                if answer.get("type") != "ready":
                    raise KernelError(str(answer))
        except KernelError:
            await kernel.kill()
            link.close()
            raise
        link.become_idle()
        return kernel

    def close(self) -> None:
        """Nothing is shared between kernels."""
