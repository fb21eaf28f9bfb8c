"""The clients behind `Sandbox.create()` without a client: one for the process, or one for each event loop."""

from __future__ import annotations

import atexit
import threading
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from cellbox.client._compat import async_scope

if TYPE_CHECKING:
    from cellbox.client._async._client import AsyncClient
    from cellbox.client._sync._client import Client

_lock = threading.Lock()
_client: Client | None = None
_async_clients: WeakKeyDictionary[Any, tuple[AsyncClient, AsyncGenerator[None, None]]] = WeakKeyDictionary()
_async_client: AsyncClient | None = None


def default_client() -> Client:
    """The process's own client, configured from the environment at its first use and closed at exit."""
    global _client
    with _lock:
        if _client is None:
            from cellbox.client._sync._client import Client

            _client = Client()
            atexit.register(_client.close)
        return _client


async def async_default_client() -> AsyncClient:
    """The event loop's own client: its connections can't be used from another loop. Closed with the loop."""
    from cellbox.client._async._client import AsyncClient

    loop = async_scope()
    if loop is None:  # trio, whose run has no name to file the client under: connections are made anew for each run
        global _async_client
        _async_client = _async_client or AsyncClient()
        return _async_client
    if loop not in _async_clients:
        client = AsyncClient()
        closer = _close_with_loop(client)
        _async_clients[loop] = (client, closer)
        await anext(closer)
    return _async_clients[loop][0]


async def _close_with_loop(client: AsyncClient) -> AsyncGenerator[None, None]:
    """Suspended until `asyncio.run` finalizes the asynchronous generators that are left: the loop's own exit hook."""
    try:
        yield
    finally:
        await client.aclose()
