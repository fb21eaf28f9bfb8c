"""Keeps browsers out that were lured here: by another site's page (`Origin`) or by a rebound name (`Host`)."""

from __future__ import annotations

from cellbox.errors import PermissionDeniedError
from cellbox.server.listen import TcpAddress, UnixAddress

_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


class Guard:
    """The exact lists of hosts and origins that requests may carry."""

    def __init__(
        self, address: TcpAddress | UnixAddress, allowed_hosts: tuple[str, ...], allowed_origins: tuple[str, ...]
    ) -> None:
        hosts: tuple[str, ...] | None = allowed_hosts or None
        if hosts is None and isinstance(address, TcpAddress) and address.is_loopback:
            hosts = (*_LOOPBACK_NAMES, address.name)
        self._hosts = None if hosts is None else frozenset(host.lower().encode() for host in hosts)
        self._origins = frozenset(origin.encode() for origin in allowed_origins)
        self._trusted = set[bytes]()

    def check(self, headers: dict[bytes, bytes]) -> bytes | None:
        """Return the allowed origin, if there is one in the request. Raises `PermissionDeniedError`."""
        if self._hosts is not None:
            host = headers.get(b"host", b"")
            if host not in self._trusted:
                self._check_host(host)
        origin = headers.get(b"origin")
        if origin is not None and origin not in self._origins:
            raise PermissionDeniedError(
                "requests from web pages are not allowed here",
                detail="an operator can list this page's origin in `allowed_origins`",
            )
        return origin

    def _check_host(self, host: bytes) -> None:
        name, colon, port = host.lower().rpartition(b":")
        if not (colon and port.isdigit()):
            name = host.lower()
        assert self._hosts is not None
        if name not in self._hosts and host.lower() not in self._hosts:
            raise PermissionDeniedError(
                f"this server is not known as {host.decode('latin-1')[:100]!r}",
                detail="an operator can list the name in `allowed_hosts`",
            )
        if len(self._trusted) < 64:
            self._trusted.add(host)
