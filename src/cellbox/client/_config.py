"""Where the daemon is and which key opens it: arguments, environment, config file, else a private local daemon."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cellbox.errors import ConfigurationError

DEFAULT_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One daemon's address, taken apart once so that no request has to."""

    url: str
    """As people write it: for messages. Empty for the private daemon, whose socket is found at the first request."""
    scheme: str = "http"
    host: str = "cellbox"
    port: int | None = None
    prefix: str = "/v1"
    socket_path: str | None = None
    api_key: str | None = None
    proxy: str | None = None

    @property
    def is_private(self) -> bool:
        """Whether the private local daemon is meant."""
        return not self.url


def resolve_endpoint(
    api_url: str | None = None,
    api_key: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Endpoint:
    """Decide where to send requests and with which key.

    The address comes from the first of: the argument, `CELLBOX_API_URL`, `PANDASTACK_API`, `api_url` in the config
    file, the private local daemon. The key comes from the argument, or else from a source that belongs to that
    address: one kept for another service never travels to this one.

    Raises:
        ConfigurationError: The address or the config file makes no sense.
    """
    env = os.environ if environ is None else environ
    cellbox_key, panda_key = env.get("CELLBOX_API_KEY"), env.get("PANDASTACK_API_KEY")
    if api_url:
        return parse_url(api_url, api_key or cellbox_key or panda_key, env)
    if url := env.get("CELLBOX_API_URL"):
        return parse_url(url, api_key or cellbox_key, env)
    if url := env.get("PANDASTACK_API"):
        return parse_url(url, api_key or cellbox_key or panda_key, env)
    file = _read_config_file(config_path(env))
    if url := file.get("api_url"):
        return parse_url(url, api_key or cellbox_key or file.get("api_key"), env)
    return Endpoint(url="", api_key=api_key)


def config_path(environ: Mapping[str, str]) -> Path:
    """`$XDG_CONFIG_HOME/cellbox/config.toml`, by default under `~/.config`."""
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".config")  # noqa: PTH111,PTH118
    return Path(base) / "cellbox" / "config.toml"


def _read_config_file(path: Path) -> dict[str, str]:
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"The config file {path} can't be read: {error}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"The config file {path} is no TOML: {error}") from error
    found: dict[str, str] = {}
    for name in ("api_url", "api_key"):
        value = values.get(name, "")
        if not isinstance(value, str):
            raise ConfigurationError(f"{name} in {path} must be a string, not {value!r}")
        found[name] = value
    return found


def parse_url(url: str, api_key: str | None, environ: Mapping[str, str]) -> Endpoint:
    """Take an address apart: `http://…`, `https://…` or `unix:/path/of.sock`.

    Raises:
        ConfigurationError: It is none of these.
    """
    if url.startswith("unix:"):
        path = "/" + url.removeprefix("unix:").lstrip("/")
        if path == "/":
            raise ConfigurationError(f"The address {url!r} names no socket: write unix:/path/of.sock")
        return Endpoint(url=url, socket_path=path, api_key=api_key)
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(f"The address {url!r} makes no sense: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"The address {url!r} makes no sense: write http://HOST:PORT or unix:/path/of.sock")
    prefix = parts.path.rstrip("/")
    return Endpoint(
        url=url.strip(),
        scheme=parts.scheme,
        host=parts.hostname,
        port=port,
        prefix=prefix if prefix.endswith("/v1") else prefix + "/v1",
        api_key=api_key,
        proxy=_proxy_for(parts.scheme, parts.hostname, environ),
    )


def _proxy_for(scheme: str, host: str, environ: Mapping[str, str]) -> str | None:
    """The usual environment variables, except that a daemon on this machine is never asked through a proxy."""
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return None
    proxy = environ.get(f"{scheme}_proxy") or environ.get(f"{scheme.upper()}_PROXY") or environ.get("ALL_PROXY")
    if not proxy:
        return None
    excluded = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    for name in (part.strip().lstrip(".") for part in excluded.split(",")):
        if name == "*" or (name and (host == name or host.endswith("." + name))):
            return None
    return proxy
