"""A kernel process: from the fork of the zygote to its end, one request after another."""

from __future__ import annotations

import fcntl
import functools
import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import time
import warnings
from typing import Any, NoReturn

from cellbox.guest.kernel import protocol, stdin
from cellbox.guest.kernel.streams import CellStream, Outbox
from cellbox.wire.frames import DataChannel, FrameReader, MessageAssembler

HARD_INTERRUPT = signal.SIGRTMIN + 5
"""Interrupts a cell that ignores SIGINT or catches `KeyboardInterrupt`, and still keeps the kernel's state."""
RESEED = signal.SIGRTMIN + 6
"""The sandbox is a clone: whatever runs now draws other numbers from here on."""
_PRIVATE_FD = 200  # where our descriptors live, out of the way of scripts that count or close from 3 up


class CellInterrupt(BaseException):
    """Not a `KeyboardInterrupt`, so that a loop which swallows those ends; reported under that name."""


CellInterrupt.__name__ = CellInterrupt.__qualname__ = "KeyboardInterrupt"
CellInterrupt.__module__ = "builtins"


class Kernel:
    """Serves one context."""

    def __init__(self, shell: Any, channel: socket.socket, pipes: tuple[int, int]) -> None:
        self._shell = shell
        self._pid = os.getpid()
        self._channel = channel
        self._pipes = pipes
        self._outbox: Outbox | None = None
        self._streams: tuple[CellStream, ...] = ()

    def serve(self) -> NoReturn:
        """Answer requests until PID 1 hangs up."""
        while True:
            try:
                request = self._receive()
                if request is None:
                    os._exit(0)
                answer = getattr(self, f"_{request.pop('op')}")(**request)
                if os.getpid() != self._pid:
                    self._end_child()
                self._answer(answer)
            except (KeyboardInterrupt, CellInterrupt):
                continue  # a signal that came too late for its cell

    def _connect(self, token: str) -> dict[str, Any]:
        """Do everything that is the same in every sandbox, so that the checkpoint has it done."""
        pipes = tuple(fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, _PRIVATE_FD) for pipe in (1, 2))
        self._outbox = Outbox(self._channel, pipes, bytes.fromhex(token))
        self._streams = (CellStream(self._outbox, DataChannel.STDOUT), CellStream(self._outbox, DataChannel.STDERR))
        sys.stdout = sys.__stdout__ = self._streams[0]
        sys.stderr = sys.__stderr__ = self._streams[1]
        sys.stdin = sys.__stdin__ = stdin.NoInput()
        sys.argv = [""]
        stdin.install()
        multiprocessing.set_start_method("fork", force=True)  # cell-defined functions exist in no file
        warnings.filterwarnings(
            "ignore", message=r".*use of fork\(\) may lead to deadlocks", category=DeprecationWarning
        )
        warnings.filterwarnings("ignore", message="To exit: use")
        self._flush_before_children()
        self._shell.connect(self._outbox)
        self._shell.warm_up()
        signal.signal(RESEED, lambda *_: _reseed(""))
        _reseed("")  # OpenSSL and numpy set up their generators at the first use, which takes 30 ms
        return {"type": "ready"}

    def _boot(
        self, root: str, entropy: str, env: dict[str, str], limits: list[list[int]], cpus: list[int]
    ) -> dict[str, Any]:
        """Turn the copy of the zygote into this sandbox's. Nothing of the user's ran before."""
        if root and os.path.isdir(root):  # not there when the guest runs in place
            os.chroot(root)
        os.chdir("/")
        for kind, soft, hard in limits:
            resource.setrlimit(kind, (soft, hard))
        if cpus:
            os.sched_setaffinity(0, cpus)
        os.environ.clear()
        os.environ.update(env)
        os.environ.setdefault("MPLBACKEND", "agg")
        time.tzset()
        _reseed(entropy)
        return {"type": "ready"}

    def _warm_up(self) -> dict[str, Any]:
        """Touch the memory that a cell needs: after a fork gVisor copies 2 MB at each first write."""
        self._shell.rehearse(lambda: self._run("0", {}))
        return {"type": "ready"}

    def _adopt(self, cwd: str, env: dict[str, str]) -> dict[str, Any]:
        """Take on a context's working directory and variables."""
        try:
            os.chdir(cwd)
        except OSError as error:
            return {"type": "refused", "message": f"working directory {cwd!r}: {error.strerror}"}
        os.environ.update(env)
        time.tzset()
        return {"type": "ready"}

    def _run(self, code: str, env: dict[str, str], reseed: bool = False) -> dict[str, Any]:
        if reseed:
            _reseed("")
        started = time.monotonic()
        before = {name: os.environ.get(name) for name in env}
        os.environ.update(env)
        for name, stream in zip(("stdout", "stderr"), self._streams, strict=True):
            if getattr(getattr(sys, name), "closed", True):
                setattr(sys, name, stream)
        fields: dict[str, Any] | None = None
        failure: BaseException | None = None
        try:
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(HARD_INTERRUPT, _interrupt_hard)
                fields = self._shell.run(code)
            except BaseException as error:  # an interrupt between the cell's own code and the end of ours
                failure = error
            _ignore_interrupts()
        except (KeyboardInterrupt, CellInterrupt) as error:
            failure = error
        _ignore_interrupts()
        if fields is None:
            fields = self._shell.outcome(failure)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        return {"type": "cell_done", "duration_ms": (time.monotonic() - started) * 1000, **fields}

    def _receive(self) -> dict[str, Any] | None:
        reader, assembler = FrameReader(), MessageAssembler()
        while True:
            packet = self._channel.recv(protocol.MAX_PACKET)
            if not packet:
                return None
            for frame in reader.feed(packet):
                document = assembler.add(frame)
                if document is not None:
                    return json.loads(document)

    def _answer(self, fields: dict[str, Any]) -> None:
        document = json.dumps(fields, separators=(",", ":")).encode()
        if self._outbox is not None:
            self._outbox.answer(document)

    def _end_child(self) -> NoReturn:
        """End a process that a cell forked and that ran on past the cell's end: it must never act as the kernel."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                continue
        os._exit(0)

    def _flush_before_children(self) -> None:
        """Send our own output before a child may write: what starts one without a fork in Python is wrapped."""
        import subprocess

        outbox = self._outbox

        def flushing(function, module, name):
            @functools.wraps(function)
            def call(*args, **options):
                outbox.flush()
                return function(*args, **options)

            call.__module__, call.__qualname__ = module.__name__, name  # where pickle finds it
            return call

        for module, name in (
            (os, "system"),
            (os, "posix_spawn"),
            (os, "posix_spawnp"),
            (os, "execv"),
            (os, "execve"),
            (subprocess, "_fork_exec"),
        ):
            if hasattr(module, name):
                setattr(module, name, flushing(getattr(module, name), module, name))


def become_kernel(shell: Any, channel: socket.socket, pipes: tuple[int, int]) -> NoReturn:
    """Turn a fork of the zygote into a kernel. Does not return."""
    try:
        os.setsid()
        _ignore_interrupts()
        # Standard input is the zygote's, which is empty; the user's own /dev/null may be anything by now.
        for pipe, target in zip(pipes, (1, 2), strict=True):
            os.dup2(pipe, target)
            os.close(pipe)
        private = fcntl.fcntl(channel.fileno(), fcntl.F_DUPFD_CLOEXEC, _PRIVATE_FD)
        channel.close()
        Kernel(shell, socket.socket(fileno=private), (1, 2)).serve()
    except BaseException as error:
        os.write(2, f"cellbox kernel: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(70)


def _reseed(entropy: str) -> None:
    """Mix what is this kernel's alone into every generator that a checkpoint or the fork has copied."""
    seed = bytes.fromhex(entropy) + os.urandom(32)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed([int.from_bytes(seed[at : at + 4], "big") for at in range(0, len(seed), 4)])
    if "ssl" in sys.modules:
        sys.modules["ssl"].RAND_add(seed, len(seed))


def _interrupt_hard(_number: int, _frame: Any) -> NoReturn:
    raise CellInterrupt


def _ignore_interrupts() -> None:
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(HARD_INTERRUPT, signal.SIG_IGN)
        except (KeyboardInterrupt, CellInterrupt):
            continue
        return
