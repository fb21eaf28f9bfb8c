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

from cellbox.control.keys import Caller
from cellbox.control.settings import Secret, Settings
from cellbox.server import serve as serve_module
from cellbox.server.listen import Address, TcpAddress
from cellbox.testing.fake_control import FakeControl

ADMIN_KEY = "pds_" + "0123456789abcdef" * 2


class RunningServer:
    """A server in its own thread and loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.control: Any = None
        self._server: Any = None
        self._address: Future[Address] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.exit_code: int | None = None
        self._thread = threading.Thread(target=self._run, name="server under test")

    def __enter__(self) -> RunningServer:
        self._thread.start()
        self._address.result(10)
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop)
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
        return httpx2.Client(base_url=self.url, headers=headers, timeout=10, **options)

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

    def _stop(self) -> None:
        self._server.should_exit = True

    def _run(self) -> None:
        def make_control(settings: Settings) -> Any:
            self.control = FakeControl(settings)
            return self.control

        async def main() -> int:
            self._loop = asyncio.get_running_loop()
            return await serve_module.serve(
                self.settings, on_ready=self._address.set_result, make_control=make_control
            )

        made = serve_module._Server

        class Recorded(made):  # the only handle on a server that runs in a thread without signals
            def __init__(inner, *arguments: Any) -> None:  # noqa: N805
                super().__init__(*arguments)
                self._server = inner

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(serve_module, "_Server", Recorded)
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


@pytest.fixture
def server(start_server: StartServer) -> RunningServer:
    return start_server()


__all__ = ["ADMIN_KEY", "Caller", "RunningServer", "StartServer"]
