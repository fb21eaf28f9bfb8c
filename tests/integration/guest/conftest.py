"""The guest as an ordinary process over pipes: no namespaces, mounts or limits, and no kernels."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cellbox.wire import flow, frames, messages
from cellbox.wire.frames import DataChannel, Kind

_SOURCE = Path(__file__).parents[3] / "src"
_WITHOUT_KERNELS = """
import sys, types

class Contexts:
    python, problem = "", "no kernels in this test"
    def __init__(self, table): pass
    def handlers(self): return {}
    async def start(self, environment): pass
    async def configure(self, request, environment, root): pass
    async def warm_up(self): pass
    def extend_environment(self, variables): pass
    def activity(self): return 0, 0
    def note_out_of_memory(self, pid): return False

module = types.ModuleType("cellbox.guest.contexts")
module.Contexts = Contexts
sys.modules[module.__name__] = module
from cellbox.guest.agent import main
main()
"""


class Operation:
    """One operation, as the host sees it."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.outcome: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self.data = {channel: bytearray() for channel in DataChannel}
        self.returns_credit = True
        self.received = 0

    @property
    def content(self) -> bytes:
        return bytes(self.data[DataChannel.MAIN])

    @property
    def stdout(self) -> bytes:
        return bytes(self.data[DataChannel.STDOUT])

    @property
    def stderr(self) -> bytes:
        return bytes(self.data[DataChannel.STDERR])


class HostEnd:
    """A host that blocks: opens operations and collects what the guest says."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.hello: dict[str, Any] = {}
        self.logs: list[str] = []
        self._writer, self._reader = process.stdin.fileno(), process.stdout.fileno()
        self._frames = frames.FrameReader()
        self._assemblers: dict[int, frames.MessageAssembler] = {}
        self._operations: dict[int, Operation] = {}
        self._last_stream = 0

    def open(self, request: messages.Request, data: bytes | None = None, *, end: bool = True) -> Operation:
        self._last_stream += 1
        operation = self._operations[self._last_stream] = Operation(self._last_stream)
        document = json.dumps(messages.to_fields(request)).encode()
        self._write(b"".join(frames.encode_json(Kind.OPEN, operation.stream, document)))
        if data is not None:
            for start in range(0, len(data), frames.CHUNK_BYTES):
                self._write(frames.encode(Kind.DATA, operation.stream, data[start : start + frames.CHUNK_BYTES]))
            if end:
                self._write(frames.encode(Kind.EOF, operation.stream))
        return operation

    def cancel(self, operation: Operation) -> None:
        self._write(frames.encode(Kind.CANCEL, operation.stream))

    def wait(self, operation: Operation, seconds: float = 20) -> Operation:
        deadline = time.monotonic() + seconds
        while not operation.outcome:
            self.read(deadline - time.monotonic())
        return operation

    def do(self, request: messages.Request, data: bytes | None = None) -> Operation:
        return self.wait(self.open(request, data))

    def run(self, command: str, **options: Any) -> Operation:
        return self.do(messages.Exec(command=command, **options))

    def read(self, seconds: float) -> None:
        """Take what the guest says next."""
        if not select.select([self._reader], [], [], max(seconds, 0))[0]:
            raise TimeoutError("the guest does not answer")
        data = os.read(self._reader, 1024 * 1024)
        if not data:
            raise EOFError("the guest is gone")
        for frame in self._frames.feed(data):
            self._take(frame)

    def _take(self, frame: frames.Frame) -> None:
        operation = self._operations.get(frame.stream)
        if frame.kind == Kind.DATA:
            assert operation is not None
            operation.data[DataChannel(frame.flags)] += frame.payload
            self._return_credit(operation, len(frame.payload))
            return
        if frame.kind not in (Kind.HELLO, Kind.MESSAGE, Kind.CLOSE):
            return
        document = self._assemblers.setdefault(frame.stream, frames.MessageAssembler()).add(frame)
        if document is None:
            return
        message = json.loads(document)
        if frame.kind == Kind.HELLO:
            self.hello = message
        elif operation is None:
            self.logs.append(message["text"])
        elif frame.kind == Kind.CLOSE:
            operation.outcome = message
        else:
            operation.events.append(message)
            self._return_credit(operation, len(document))

    def _return_credit(self, operation: Operation, size: int) -> None:
        operation.received += size
        if operation.returns_credit:
            self._write(frames.encode(Kind.CREDIT, operation.stream, flow.CREDIT.pack(size)))

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._writer, rest) :]


def _start() -> HostEnd:
    process = subprocess.Popen(
        [sys.executable, "-S", "-B", "-c", _WITHOUT_KERNELS, "--in-place"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8", "PYTHONPATH": str(_SOURCE)},
    )
    return HostEnd(process)


@contextmanager
def running() -> Generator[HostEnd]:
    """A guest that waits to be configured, and ends with the block."""
    host = _start()
    with host.process:
        try:
            while not host.hello:
                host.read(10)
            yield host
        finally:
            assert host.process.stdin is not None
            host.process.stdin.close()
            host.process.wait(10)


@pytest.fixture
def unconfigured() -> Iterator[HostEnd]:
    """A guest that waits to be configured."""
    with running() as host:
        yield host


def configuration(**changes: Any) -> messages.Configure:
    values: dict[str, Any] = {
        "hostname": "box", "memory_mb": 512, "disk_mb": 512, "tasks": 256, "entropy": "ab" * 32, "env": {"FOO": "bar"}
    }  # fmt: skip
    return messages.Configure(**{**values, **changes})


@pytest.fixture
def guest(unconfigured: HostEnd) -> HostEnd:
    """A guest that was configured."""
    assert unconfigured.do(configuration()).outcome["type"] == "configured"
    return unconfigured


@pytest.fixture(scope="module")
def shared_guest() -> Iterator[HostEnd]:
    """A guest that was configured, for all tests of a module: none may leave anything behind in it."""
    with running() as host:
        assert host.do(configuration()).outcome["type"] == "configured"
        yield host
