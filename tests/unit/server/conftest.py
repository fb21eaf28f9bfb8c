"""A real server on a real socket in a thread of its own, over a `FakeControl`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pandastack
import pytest
import uvloop

from cellbox.control.settings import Secret, Settings
from cellbox.server.listen import Address, TcpAddress
from cellbox.server.serve import serve
from cellbox.testing.fake_control import FakeControl, FakeSandboxes

ADMIN_KEY = "pds_" + "0123456789abcdef" * 2


class RunningServer:
    """A server in its own thread and loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.control: Any = None
        self._stop = asyncio.Event()
        self._address: Future[Address] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, name="server under test", daemon=True)

    def __enter__(self) -> RunningServer:
        self._thread.start()
        self._address.result(10)
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    @property
    def address(self) -> Address:
        return self._address.result(0)

    @property
    def url(self) -> str:
        assert isinstance(self.address, TcpAddress)
        return str(self.address)

    def client(self, key: str | None = ADMIN_KEY, **options: Any) -> httpx2.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=10, verify=False, **options)

    def pandastack(self, key: str = ADMIN_KEY, **options: Any) -> pandastack.Client:
        return pandastack.Client(api_url=self.url, api_key=key, **options)

    def call(self, work: Callable[[], Any]) -> Any:
        """Run something in the server's loop and wait for it."""

        async def run() -> Any:
            result = work()
            return await result if asyncio.iscoroutine(result) else result

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def new_key(self, owner: str, **options: Any) -> str:
        return self.call(lambda: self.control.keys.create("test", owner=owner, **options)).token

    def wait_for(self, event: asyncio.Event, seconds: float = 5) -> None:
        self.call(lambda: asyncio.wait_for(event.wait(), seconds))

    def _run(self) -> None:
        def make_control(settings: Settings) -> Any:
            self.control = FakeControl(settings)
            return self.control

        async def main() -> int:
            self._loop = asyncio.get_running_loop()
            return await serve(
                self.settings, on_ready=self._address.set_result, stop=self._stop, make_control=make_control
            )

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                self.exit_code = runner.run(main())
            except BaseException as error:
                if self._address.done():
                    raise
                self._address.set_exception(error)


StartServer = Callable[..., RunningServer]


@pytest.fixture
def make_settings(tmp_path: Path) -> Callable[..., Settings]:
    def make(**changes: Any) -> Settings:
        defaults = Settings(
            listen="127.0.0.1:0", data_dir=tmp_path, bootstrap_key=Secret(ADMIN_KEY), log_level="warning"
        )
        return msgspec.structs.replace(defaults, **changes)

    return make


@pytest.fixture
def start_server(make_settings: Callable[..., Settings]) -> Iterator[StartServer]:
    running: list[RunningServer] = []

    def start(**changes: Any) -> RunningServer:
        server = RunningServer(make_settings(**changes)).__enter__()
        running.append(server)
        return server

    yield start
    for server in running:
        server.__exit__()


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = Settings(
        listen="127.0.0.1:0",
        data_dir=tmp_path_factory.mktemp("server"),
        bootstrap_key=Secret(ADMIN_KEY),
        log_level="warning",
    )
    with RunningServer(settings) as server:
        yield server


@pytest.fixture
def server(shared_server: RunningServer) -> RunningServer:
    """A server without sandboxes and with the bootstrap key only; started once for each module."""
    keys = shared_server.control.keys
    for row in keys.list():
        if row.label != "bootstrap":
            shared_server.call(lambda prefix=row.prefix: keys.revoke(prefix))
    shared_server.control.sandboxes = FakeSandboxes()
    return shared_server


__all__ = ["ADMIN_KEY", "RunningServer", "StartServer"]
