"""A real zygote and real kernels as ordinary processes, driven through a real `Channel` by a small host.

`CELLBOX_KERNEL_PYTHON` names an interpreter with IPython and friends; without it the one that runs the tests is tried.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cellbox.guest.channel import Channel
from cellbox.guest.contexts import Contexts
from cellbox.guest.processes import Processes
from cellbox.wire import flow, frames, messages
from cellbox.wire.frames import DataChannel, Kind

_PYTHONS = (os.environ.get("CELLBOX_KERNEL_PYTHON", ""), sys.executable)


@dataclass
class Outcome:
    """What came of one operation."""

    events: list[tuple[str, Any]] = field(default_factory=list)
    answer: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def _text(self, name: str) -> str:
        return b"".join(value for kind, value in self.events if kind == name).decode()

    @property
    def stdout(self) -> str:
        return self._text("stdout")

    @property
    def stderr(self) -> str:
        return self._text("stderr")

    @property
    def displays(self) -> list[dict[str, Any]]:
        return [value for kind, value in self.events if kind == "display"]

    @property
    def late(self) -> dict[str, int]:
        """Bytes of both streams that were written before the cell began."""
        found = [value for kind, value in self.events if kind == "late_output"]
        assert not found or self.events[0][0] == "late_output"
        return {name: sum(value[name] for value in found) for name in ("stdout", "stderr")}

    @property
    def text(self) -> str | None:
        main = [display["bundle"].get("text/plain") for display in self.displays if display["is_main"]]
        assert len(main) <= 1
        return main[0] if main else None

    @property
    def error(self) -> dict[str, str]:
        return self.answer["error"] or {"name": "", "value": "", "traceback": ""}

    @property
    def order(self) -> list[str]:
        """The events as text, neighbours of one kind joined."""
        found: list[list[str]] = []
        for kind, value in self.events:
            text = value.decode() if isinstance(value, bytes) else value["bundle"].get("text/plain", "")
            if found and found[-1][0] == kind and kind != "display":
                found[-1][1] += text
            else:
                found.append([kind, text])
        return [f"{kind}:{text}" for kind, text in found]


class Host:
    """Speaks for the host on a channel, over a socket pair."""

    def __init__(self, handlers: dict[type[messages.Request], Any]) -> None:
        import socket

        ours, theirs = socket.socketpair()
        self._socket = ours
        ours.setblocking(False)
        self._theirs = theirs
        self._channel = Channel(theirs.fileno(), theirs.fileno(), handlers)
        self._channel.start(messages.Hello(version=1, guest_version="test"))
        self._reader = frames.FrameReader()
        self._open: dict[
            int, tuple[Outcome, asyncio.Future[None], flow.ReceiveWindow, frames.MessageAssembler, bool]
        ] = {}
        self._last = 0
        self.first_output: dict[int, float] = {}
        asyncio.get_running_loop().add_reader(ours.fileno(), self._read)

    def open(self, request: messages.Request, *, takes: bool = True) -> tuple[int, Outcome, asyncio.Future[None]]:
        self._last += 1
        outcome, future = Outcome(), asyncio.get_running_loop().create_future()
        self._open[self._last] = (outcome, future, flow.ReceiveWindow(), frames.MessageAssembler(), takes)
        document = json.dumps(messages.to_fields(request)).encode()
        data = b"".join(frames.encode_json(Kind.OPEN, self._last, document))
        if len(data) < 32768:
            self._socket.sendall(data)
        else:
            self._writing = asyncio.ensure_future(asyncio.get_running_loop().sock_sendall(self._socket, data))
        return self._last, outcome, future

    def send(self, kind: Kind, stream: int, payload: bytes = b"") -> None:
        self._socket.sendall(frames.encode(kind, stream, payload))

    async def ask(self, request: messages.Request) -> Outcome:
        started = time.monotonic()
        _, outcome, future = self.open(request)
        await future
        outcome.seconds = time.monotonic() - started
        return outcome

    def close(self) -> None:
        self._socket.close()
        self._theirs.close()

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        for frame in self._reader.feed(data):
            if frame.stream in self._open:
                self._take(frame)

    def _take(self, frame: frames.Frame) -> None:
        outcome, future, window, assembler, takes = self._open[frame.stream]
        if frame.kind == Kind.DATA:
            outcome.events.append((DataChannel(frame.flags).name.lower(), frame.payload))
        else:
            document = assembler.add(frame)
            if document is not None and frame.kind == Kind.MESSAGE:
                event = json.loads(document)
                outcome.events.append((event["type"], event))
            elif document is not None:
                outcome.answer = json.loads(document)
                self._open.pop(frame.stream)
                future.set_result(None)
                return
        self.first_output.setdefault(frame.stream, time.monotonic())
        if takes and (credit := window.take(len(frame.payload))):
            self.send(Kind.CREDIT, frame.stream, credit)


class Bench:
    """Contexts on a loop of their own, for synchronous tests."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.runner.run(self._start())
        self._count = 0

    async def _start(self) -> None:
        self.table = Processes()
        self.table.start()
        problem = "no interpreter"
        for python in _PYTHONS:
            if python and Path(python).exists():
                self.contexts = Contexts(self.table)
                environment = {
                    "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
                    "HOME": "/root",
                    "LANG": "C.UTF-8",
                }
                version, problem = await self.contexts.start(environment, python)
                if version:
                    break
        else:
            pytest.fail(f"no kernel here: {problem}")
        configure = messages.Configure(hostname="h", memory_mb=1024, disk_mb=1024, tasks=256, entropy="ab" * 32)
        await self.contexts.configure(configure, environment, "")
        self.host = Host(self.contexts.handlers())

    def ask(self, request: messages.Request) -> Outcome:
        async def within() -> Outcome:
            return await asyncio.wait_for(self.host.ask(request), 60)

        return self.runner.run(within())

    def context(self, **options: Any) -> Context:
        self._count += 1
        context_id = f"context-{self._count}"
        made = self.ask(messages.CreateContext(context_id=context_id, **options))
        assert made.answer["type"] == "context", made.answer
        return Context(self, context_id)

    def idle(self, seconds: float) -> None:
        """Let PID 1's side go on without a cell."""
        self.runner.run(asyncio.sleep(seconds))

    def close(self) -> None:
        self.runner.run(self.contexts.close())
        self.host.close()
        self.runner.close()


@dataclasses.dataclass
class Context:
    bench: Bench
    id: str

    def run(self, code: str, timeout: float | None = 20, **options: Any) -> Outcome:
        request = messages.RunCell(context_id=self.id, code=code, timeout_seconds=timeout, **options)
        return self.bench.ask(request)

    def close(self) -> None:
        self.bench.ask(messages.CloseContext(context_id=self.id))


@pytest.fixture(scope="module")  # no longer: an idle loop does not read the signals that other tests' children cause
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def shared(bench: Bench) -> Iterator[Context]:
    """One context for cells that leave nothing behind; the order of tests is random."""
    context = bench.context(cwd="/tmp")
    yield context
    context.close()


@pytest.fixture
def fresh(bench: Bench) -> Iterator[Context]:
    """A context of the test's own."""
    context = bench.context(cwd="/tmp")
    yield context
    context.close()
