"""The client: one daemon's sandboxes, snapshots, workspaces, templates and keys."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from cellbox.client._async._connection import AsyncConnection
from cellbox.client._async._pool import AsyncPool
from cellbox.client._async._sandboxes import AsyncSandboxes
from cellbox.client._async._snapshots import AsyncSnapshots
from cellbox.client._async._templates import AsyncTemplates
from cellbox.client._async._tokens import AsyncTokens
from cellbox.client._async._transport import AsyncTransport
from cellbox.client._async._workspaces import AsyncWorkspaces
from cellbox.client._codec import decode_answer
from cellbox.client._config import DEFAULT_TIMEOUT_SECONDS, resolve_endpoint
from cellbox.protocol import account, operations
from cellbox.protocol.operations import Operation

_get_version: Operation[None, account.Version] = Operation(
    name="get_version",
    method="GET",
    path="/version",
    summary="What answers here.",
    body=type(None),
    result=account.Version,
    scope="public",
)


class AsyncClient:
    """A connection to one daemon. Use it as a context manager, or call `aclose` in the end.

    Args:
        api_url: `http://HOST:PORT`, `https://…` or `unix:/path/of.sock`. Otherwise from `CELLBOX_API_URL`, then
            `PANDASTACK_API`, then `api_url` in `~/.config/cellbox/config.toml`; if all of these are missing, a private
            daemon on this machine is used, and started if need be at the first request.
        api_key: Otherwise from the same source as the address (`CELLBOX_API_KEY`, `PANDASTACK_API_KEY`, `api_key` in
            the config file). The private daemon needs none.
        timeout_seconds: How long the daemon may be silent before a request is given up. Requests that run something
            add this to the time that they give it.
        transport: Sends the requests, in place of pooled connections: for tests and unusual networks.

    Raises:
        ConfigurationError: The address or the config file makes no sense.
    """

    def __init__(
        self,
        api_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        transport: AsyncTransport | None = None,
    ) -> None:
        endpoint = resolve_endpoint(api_url, api_key)
        self._connection = AsyncConnection(endpoint, timeout_seconds=timeout_seconds, transport=transport)
        self.sandboxes = AsyncSandboxes(self._connection)
        self.snapshots = AsyncSnapshots(self._connection)
        self.templates = AsyncTemplates(self._connection)
        self.workspaces = AsyncWorkspaces(self._connection)
        self.tokens = AsyncTokens(self._connection)
        self.pool = AsyncPool(self._connection)

    @property
    def api_url(self) -> str:
        """Where requests go; empty for the private local daemon."""
        return self._connection.endpoint.url

    async def me(self) -> account.Me:
        """Who the daemon takes the caller for."""
        return await self._connection.call(operations.get_me)

    async def capabilities(self) -> account.Capabilities:
        """What the daemon's host can really do and enforce."""
        return await self._connection.call(operations.get_capabilities)

    async def version(self) -> account.Version:
        """What answers there, in which version. Needs no key."""
        async with self._connection.open(_get_version, is_versioned=False) as response:
            return decode_answer(_get_version, response.status, "", await response.aread())

    async def aclose(self) -> None:
        """Close the connections. Sandboxes live on."""
        await self._connection.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.api_url or 'private local daemon'}>"
