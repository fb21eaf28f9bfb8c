"""Starts `runsc` and other programs: with deadlines, bounded output, and two kernel waits taken out of Go's start.

* A Go runtime calls `membarrier(REGISTER_PRIVATE_EXPEDITED)` when it already has threads, and the kernel then waits for
  an RCU grace period: 12-14 ms in each of the five or six processes of one `runsc create`. The programs started here
  run under a seccomp filter that answers ENOSYS to that one call.
* Growing a descriptor table in a threaded process waits in the same way; inheriting one high descriptor makes the
  table large from the start.

Measured together (2 cores, kernel 6.18): `runsc create` 97 → 50 ms. A seccomp filter belongs to a thread, so only the
threads that start programs carry it; the daemon itself, and what other packages start, are not touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import platform
import signal
import struct
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cellbox.engines.gvisor.processes import Process, reap_orphans

OUTPUT_LIMIT = 1 << 20
"""Bytes kept of a program's output (`runsc flags` prints some 15 KB). A program that writes more is killed."""

_PR_SET_SECCOMP = 22
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_ENOSYS = 38
_HIGH_FD = 512
"""Any number from 256 on makes the kernel allocate the larger table; `runsc boot` puts its stdio at 253 and up."""
_MEMBARRIER = {"x86_64": (0xC000003E, 324), "aarch64": (0xC00000B7, 283)}
"""Machine → (AUDIT_ARCH constant, number of membarrier)."""


class LaunchFault(Exception):  # noqa: N818 - internal: the engine maps it to its own errors
    """A program could not be started, ran out of time or flooded its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a program ended."""

    status: int
    """Exit code; negative: the signal that killed it."""
    output: bytes
    """stdout and stderr as one; empty when they were given away."""

    @property
    def text(self) -> str:
        return self.output.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Descriptors a program gets as its standard streams, in place of nothing and a bounded buffer."""

    stdin: int
    stdout: int
    stderr: int


class Launcher:
    """Starts programs from threads that carry the filter. `close` gives the threads back."""

    def __init__(self, *, width: int) -> None:
        """`width`: how many threads start programs; a start holds one for a millisecond or two."""
        self._threads = ThreadPoolExecutor(width, "cellbox-launch", initializer=_refuse_membarrier)
        self._high_fd = _open_high()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._high_fd is not None:
            os.close(self._high_fd)
            self._high_fd = None

    async def run(
        self,
        argv: Sequence[str],
        *,
        deadline_s: float,
        streams: Streams | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path = Path("/"),
    ) -> Finished:
        """Run a program to its end. Raises `LaunchFault`; it and its process group are gone then.

        The program's environment is `env` alone: nothing of the daemon's own gets into a sandbox by inheritance.
        """
        output = _Output() if streams is None else None
        try:
            given = streams or Streams(stdin=-1, stdout=output.writer, stderr=output.writer) if output else streams
            assert given is not None
            popen = await self._start(list(argv), given, dict(env or {}), cwd)
            if output:
                output.close_writer()
            status = await _supervise(popen, argv[0], output, deadline_s)
            return Finished(status=status, output=output.finish() if output else b"")
        finally:
            if output:
                output.close()

    async def _start(
        self, argv: list[str], streams: Streams, env: dict[str, str], cwd: Path
    ) -> subprocess.Popen[bytes]:
        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL if streams.stdin < 0 else streams.stdin,
                stdout=streams.stdout,
                stderr=streams.stderr,
                cwd=cwd,
                env=env,
                pass_fds=() if self._high_fd is None else (self._high_fd,),
                start_new_session=True,  # neither a terminal's Ctrl-C nor our process group reaches it
            )

        future = self._threads.submit(start)
        try:
            return await asyncio.wrap_future(future)
        except OSError as error:
            raise LaunchFault(f"{argv[0]} can't be started: {error.strerror or error}") from error
        except asyncio.CancelledError:
            future.add_done_callback(_kill_unwanted)
            raise


class _Output:
    """Collects what a program prints, up to the limit."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self._kept = bytearray()
        self._overflow: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._reader, self._on_readable)

    @property
    def overflow(self) -> asyncio.Future[None]:
        return self._overflow

    def _on_readable(self) -> bool:
        try:
            chunk = os.read(self._reader, 1 << 16)
        except BlockingIOError:
            return False
        self._kept += chunk
        if len(self._kept) > OUTPUT_LIMIT and not self._overflow.done():
            self._overflow.set_result(None)
        if not chunk or self._overflow.done():
            asyncio.get_running_loop().remove_reader(self._reader)
            return False
        return True

    def finish(self) -> bytes:
        while self._on_readable():  # bounded by the limit
            pass
        return bytes(self._kept[:OUTPUT_LIMIT])

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        if self._reader >= 0:
            asyncio.get_running_loop().remove_reader(self._reader)
            os.close(self._reader)
            self._reader = -1


async def _supervise(popen: subprocess.Popen[bytes], name: str, output: _Output | None, deadline_s: float) -> int:
    process = Process.open(popen.pid)
    assert process is not None, "an unreaped child keeps its number"
    ended = asyncio.ensure_future(process.wait())
    clean = False
    try:
        waited: list[asyncio.Future[None]] = [ended] if output is None else [ended, output.overflow]
        await asyncio.wait(waited, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        clean = ended.done()
        if not clean:
            flooded = output is not None and output.overflow.done()
            what = f"printed more than {OUTPUT_LIMIT} bytes" if flooded else f"did not end within {deadline_s:g} s"
            raise LaunchFault(f"{name} {what} and was killed")
    finally:
        if not clean:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(popen.pid, signal.SIGKILL)  # it leads a group of its own and is not reaped yet
        if not ended.done():
            await asyncio.wait([ended], timeout=5)
            ended.cancel()
        status = popen.poll()
        process.close()
        if not clean:
            await _reap_group(popen.pid)
    assert status is not None
    return status


async def _reap_group(session: int) -> None:
    for _ in range(20):
        if not reap_orphans({session}):
            return
        await asyncio.sleep(0.005)


def _kill_unwanted(future: Future[subprocess.Popen[bytes]]) -> None:
    """The caller was cancelled while the program was being started."""
    if future.cancelled() or future.exception() is not None:
        return
    popen = future.result()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(popen.pid, signal.SIGKILL)
    popen.wait()


def _open_high() -> int | None:
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
    except OSError:  # RLIMIT_NOFILE is lower: starts are slower, nothing else
        return None
    finally:
        os.close(null)


def _refuse_membarrier() -> None:
    """Give the calling thread, and what it starts, the filter. Without it everything works, only slower."""
    known = _MEMBARRIER.get(platform.machine())
    if known is None:
        return
    architecture, number = known
    program = [
        (0x20, 0, 0, 4),  # load the architecture
        (0x15, 0, 3, architecture),
        (0x20, 0, 0, 0),  # load the call's number
        (0x15, 0, 1, number),
        (0x06, 0, 0, 0x00050000 | _ENOSYS),  # SECCOMP_RET_ERRNO
        (0x06, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    header = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0) != 0:
        # Without CAP_SYS_ADMIN the kernel wants a promise never to gain privileges; runsc needs no set-uid program.
        prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0)


def become_subreaper() -> None:
    """Make orphaned sentries and their stubs children of this process, so that it can reap them.

    Without it they'd go to PID 1, which in many containers reaps slowly or never: destroying took 1.2-1.8 s.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
