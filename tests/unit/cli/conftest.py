"""The command against a real server on a real socket, over sandboxes that only pretend."""

from __future__ import annotations

import asyncio
import base64
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from cellbox.cli.main import run
from cellbox.control.settings import Settings
from cellbox.protocol import contexts
from cellbox.server.listen import Address
from cellbox.server.serve import serve
from cellbox.testing.fake_control import FakeContexts, FakeControl

PNG = b"\x89PNG\r\n\x1a\n of a chart"


class ChartContexts(FakeContexts):
    """Understands `chart` too, and `exit(N)`."""

    async def run(self, context_id: str, body: contexts.RunCode) -> contexts.Execution:
        if body.code == "chart":
            bundle = {"image/png": base64.b64encode(PNG).decode(), "text/plain": "<Figure size 640x480>"}
            return contexts.Execution(results=[bundle], result_info=[contexts.ResultInfo()])
        if body.code.startswith("exit("):
            return contexts.Execution(error="SystemExit", exit=int(body.code[5:-1]))
        return await super().run(context_id, body)


@dataclass
class Result:
    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def api_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("cellbox.testing.fake_control.FakeContexts", ChartContexts)
    url = f"unix:{tmp_path}/daemon.sock"
    settings = Settings(listen=url, data_dir=tmp_path, log_level="error")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    ready: Future[Address] = Future()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[int]]] = []

    async def main() -> int:
        task = asyncio.ensure_future(serve(settings, on_ready=ready.set_result, make_control=FakeControl))  # pyright: ignore[reportArgumentType]
        loops.append((asyncio.get_running_loop(), task))
        try:
            return await task
        except asyncio.CancelledError:
            return 0

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    ready.result(10)
    yield url
    loop, task = loops[0]
    loop.call_soon_threadsafe(task.cancel)
    thread.join(20)
    assert not thread.is_alive()
    structlog.reset_defaults()


@pytest.fixture
def cellbox(api_url: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Runs one command in this process and tells its exit code and what it printed."""
    monkeypatch.setenv("CELLBOX_API_URL", api_url)
    monkeypatch.delenv("CELLBOX_DEBUG", raising=False)

    def command(*arguments: str) -> Result:
        capfdbinary.readouterr()
        try:
            code = run(arguments)
        except SystemExit as leaving:  # what the parser does with a command line that makes no sense
            code = int(leaving.code or 0)
        out, err = capfdbinary.readouterr()
        return Result(code, out.decode("utf-8", "surrogateescape"), err.decode("utf-8", "replace"))

    return command
