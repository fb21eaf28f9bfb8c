"""The client: one daemon's sandboxes, snapshots, workspaces, templates and keys."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from cellbox.client._sync._connection import Connection
from cellbox.client._sync._pool import Pool
from cellbox.client._sync._sandboxes import Sandboxes
from cellbox.client._sync._snapshots import Snapshots
from cellbox.client._sync._templates import Templates
from cellbox.client._sync._tokens import Tokens
from cellbox.client._sync._transport import Transport
from cellbox.client._sync._workspaces import Workspaces
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


class Client:
    """A connection to one daemon. Use it as a context manager, or call `close` in the end.

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
        transport: Transport | None = None,
    ) -> None:
        endpoint = resolve_endpoint(api_url, api_key)
        self._connection = Connection(endpoint, timeout_seconds=timeout_seconds, transport=transport)
        self.sandboxes = Sandboxes(self._connection)
        self.snapshots = Snapshots(self._connection)
        self.templates = Templates(self._connection)
        self.workspaces = Workspaces(self._connection)
        self.tokens = Tokens(self._connection)
        self.pool = Pool(self._connection)

    @property
    def api_url(self) -> str:
        """Where requests go; empty for the private local daemon."""
        return self._connection.endpoint.url

    def me(self) -> account.Me:
        """Who the daemon takes the caller for."""
        return self._connection.call(operations.get_me)

    def capabilities(self) -> account.Capabilities:
        """What the daemon's host can really do and enforce."""
        return self._connection.call(operations.get_capabilities)

    def version(self) -> account.Version:
        """What answers there, in which version. Needs no key."""
        with self._connection.open(_get_version, is_versioned=False) as response:
            return decode_answer(_get_version, response.status, "", response.read())

    def close(self) -> None:
        """Close the connections. Sandboxes live on."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.api_url or 'private local daemon'}>"

# Generated from _async/_client.py by tools/unasync.py: edit that, and run it again.
