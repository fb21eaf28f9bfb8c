"""Where the server listens: parsing the address, and binding it before anything else is started."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cellbox.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def name(self) -> str:
        """The host as it stands in a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"http://{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket in the file system."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


Address = TcpAddress | UnixAddress


def parse_address(text: str) -> Address:
    """Read `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`. Raises `ConfigurationError`."""
    if text.startswith("unix:"):
        path = Path(text.removeprefix("unix:"))
        if not path.is_absolute():
            raise ConfigurationError(f"listen: the path of a unix socket must be absolute, not {str(path)!r}")
        return UnixAddress(path)
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65535 or (":" in bare and bare == host):
        raise ConfigurationError(f"listen: {text!r} is neither HOST:PORT nor unix:PATH")
    return TcpAddress(bare, int(port))


def bind(address: Address) -> tuple[socket.socket, Address]:
    """Bind, without listening yet, and return the socket with its final address. Raises `ConfigurationError`."""
    try:
        return _bind_unix(address) if isinstance(address, UnixAddress) else _bind_tcp(address)
    except OSError as error:
        hint = "; another daemon is running there" if error.errno == errno.EADDRINUSE else ""
        raise ConfigurationError(f"can't listen on {address}: {error.strerror or error}{hint}") from error


def _bind_tcp(address: TcpAddress) -> tuple[socket.socket, Address]:
    family, kind, protocol, _, target = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
    except BaseException:
        listener.close()
        raise
    return listener, TcpAddress(address.host, listener.getsockname()[1])


def _bind_unix(address: UnixAddress) -> tuple[socket.socket, Address]:
    path = address.path
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mask decides the socket's mode at its birth; a chmod afterwards would leave a gap for others to connect in.
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener, address


def _remove_stale(path: Path) -> None:
    """Remove the socket of a daemon that is gone; leave alone one that answers, and anything that is no socket."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise OSError(errno.EEXIST, f"{path} exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with suppress(FileNotFoundError):
                path.unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
