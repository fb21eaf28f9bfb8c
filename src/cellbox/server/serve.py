"""A daemon from start to end: bind, build `control`, serve, drain, clean up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import structlog
import uvicorn
import uvloop

from cellbox._version import __version__
from cellbox.control.control import Control
from cellbox.control.settings import Settings
from cellbox.engines.registry import prepare_process
from cellbox.errors import ConfigurationError, EngineUnavailableError
from cellbox.server.api import Api
from cellbox.server.keepalive import connection_class
from cellbox.server.listen import Address, TcpAddress, UnixAddress, bind, parse_address
from cellbox.server.logs import configure_logs
from cellbox.server.upgraded import MAX_MESSAGE_BYTES, PING_SECONDS, PONG_SECONDS, UpgradedConnection

_HOUSEKEEPING_SECONDS = 60.0

_log = structlog.stdlib.get_logger(__name__)


def run(settings: Settings) -> int:
    """Run a daemon until it is told to stop, and return the process's exit code.

    Raises `ConfigurationError`, before anything is started, when it can't run with these settings.
    """
    configure_logs(settings)
    try:
        prepare_process(settings.engine)
    except EngineUnavailableError as error:
        _log.warning("no sandboxes can be created", reason=str(error))  # each create will say so too
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(settings))


async def serve(
    settings: Settings,
    *,
    on_ready: Callable[[Address], None] | None = None,
    stop: asyncio.Event | None = None,
    make_control: Callable[[Settings], Control] = Control,
) -> int:
    """Serve until SIGTERM or SIGINT, until `stop` is set, or until idle for too long.

    `on_ready` is told the final address.
    """
    # The socket first: with a wrong address nothing has been started yet, and a second daemon notices the first.
    listener, address = bind(parse_address(settings.listen))
    with contextlib.closing(listener), _removed_afterwards(address):
        async with make_control(settings) as control:
            _refuse_open_door(control, address)
            api = Api(control, address)
            server = _Server(_uvicorn_config(settings, api), listener, api)
            with server.signals():
                async with asyncio.TaskGroup() as group:
                    chores = [
                        group.create_task(_housekeeping(control)),
                        group.create_task(_exit_when_idle(control, api, server)),
                        group.create_task(_announce(server, address, on_ready)),
                        group.create_task(_stop_when_told(server, stop)),
                    ]
                    try:
                        await server.serve(sockets=[listener])
                    finally:
                        for chore in chores:
                            chore.cancel()
    _log.info("stopped")
    return 0


def _uvicorn_config(settings: Settings, api: Api) -> uvicorn.Config:
    return uvicorn.Config(
        api,
        http=connection_class(settings.keepalive_seconds),
        ws=UpgradedConnection,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PONG_SECONDS,
        ws_per_message_deflate=False,  # what is small stays small, and inflating a stranger's bytes is an attack
        lifespan="off",
        loop="none",
        interface="asgi3",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=75,  # longer than the pools of clients keep a connection that they may use again
        timeout_graceful_shutdown=max(1, round(settings.shutdown_grace_seconds)),
    )


class _Server(uvicorn.Server):
    """uvicorn, with signals taken through the event loop and unix sockets that it did not open itself."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket, api: Api) -> None:
        super().__init__(config)
        self._listener = listener
        self._api = api
        self.is_up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        # uvicorn would raise the signals again at the end, so that a daemon told to stop would seem to have failed.
        yield

    @contextlib.contextmanager
    def signals(self) -> Generator[None]:
        """Stop on SIGTERM and SIGINT; at once on a second one."""
        loop = asyncio.get_running_loop()
        handled = list[signal.Signals]()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread, as in tests
                loop.add_signal_handler(number, self._take_signal, number)
                handled.append(number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def stop(self, reason: str) -> None:
        _log.info("stopping", reason=reason, requests=self._api.metrics.in_progress)
        self.should_exit = True

    def _take_signal(self, number: signal.Signals) -> None:
        if not self.should_exit:
            self.stop(number.name)
            return
        self.force_exit = True
        for task in self.server_state.tasks:
            task.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._listener.family == socket.AF_UNIX:
            await self._start_unix()
        else:
            await super().startup(sockets)
        self.is_up.set()

    async def _start_unix(self) -> None:
        """What uvicorn does for TCP. uvloop takes a bound unix socket by another call than a TCP one."""
        config = self.config
        make_connection: Any = config.http_protocol_class
        await self.lifespan.startup()

        def make_protocol() -> asyncio.Protocol:
            return make_connection(config=config, server_state=self.server_state, app_state=self.lifespan.state)

        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(make_protocol, sock=self._listener, backlog=config.backlog)
        self.servers = [server]
        self.started = True


def _refuse_open_door(control: Control, address: Address) -> None:
    if isinstance(address, TcpAddress) and not address.is_loopback and control.keys.is_empty:
        raise ConfigurationError(
            f"refusing to listen on {address} without an API key: nobody could get in by right. "
            "Run `cellbox key create NAME` on this machine first, or set CELLBOX_BOOTSTRAP_KEY"
        )


@contextlib.contextmanager
def _removed_afterwards(address: Address) -> Generator[None]:
    """Remove our unix socket at the end, unless another daemon has put its own in its place."""
    if not isinstance(address, UnixAddress):
        yield
        return
    identity = _identity(address.path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if _identity(address.path) == identity:
                address.path.unlink()


def _identity(path: Path) -> tuple[int, int, bool]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino, stat.S_ISSOCK(status.st_mode)


async def _announce(server: _Server, address: Address, on_ready: Callable[[Address], None] | None) -> None:
    await server.is_up.wait()
    _log.info("listening", address=str(address), version=__version__, pid=os.getpid())
    if on_ready is not None:
        on_ready(address)


async def _stop_when_told(server: _Server, stop: asyncio.Event | None) -> None:
    if stop is not None:
        await stop.wait()
        server.stop("told to")


async def _housekeeping(control: Control) -> None:
    while True:
        await asyncio.sleep(_HOUSEKEEPING_SECONDS)
        try:
            await control.keys.flush()
        except Exception as error:
            _log.warning("could not note when keys were last used", error=str(error))


async def _exit_when_idle(control: Control, api: Api, server: _Server) -> None:
    limit = control.settings.idle_exit_seconds
    while limit is not None:
        await asyncio.sleep(min(limit / 4, 5.0))
        if control.sandboxes.count():
            api.last_request = time.monotonic()
        elif api.idle_seconds >= limit:
            server.stop("idle")
            return
