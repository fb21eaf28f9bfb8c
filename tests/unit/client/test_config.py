from __future__ import annotations

from pathlib import Path

import pytest

from cellbox.client._config import Endpoint, resolve_endpoint
from cellbox.errors import ConfigurationError


def resolve(tmp_path: Path, url: str | None = None, key: str | None = None, **env: str) -> tuple[str, str | None]:
    found = resolve_endpoint(url, key, {"XDG_CONFIG_HOME": str(tmp_path), **env})
    return found.url, found.api_key


def test_order_of_sources(tmp_path: Path) -> None:
    assert resolve(tmp_path) == ("", None)
    (tmp_path / "cellbox").mkdir()
    (tmp_path / "cellbox" / "config.toml").write_text('api_url = "http://file"\napi_key = "kf"')
    assert resolve(tmp_path) == ("http://file", "kf")
    env = {"PANDASTACK_API": "http://panda", "PANDASTACK_API_KEY": "kp"}
    assert resolve(tmp_path, **env) == ("http://panda", "kp")
    env |= {"CELLBOX_API_URL": "http://own", "CELLBOX_API_KEY": "ko"}
    assert resolve(tmp_path, **env) == ("http://own", "ko")
    assert resolve(tmp_path, "http://arg", **env) == ("http://arg", "ko")
    assert resolve(tmp_path, "http://arg", "ka", **env) == ("http://arg", "ka")


def test_key_for_another_service_stays_at_home(tmp_path: Path) -> None:
    assert resolve(tmp_path, CELLBOX_API_URL="http://own", PANDASTACK_API_KEY="kp") == ("http://own", None)
    assert resolve(tmp_path, PANDASTACK_API_KEY="kp") == ("", None)


def test_addresses_are_taken_apart() -> None:
    def parse(url: str, **env: str) -> Endpoint:
        return resolve_endpoint(url, None, env)

    assert parse("http://h:8080/").prefix == "/v1"
    assert parse("https://h/p/v1").prefix == "/p/v1"
    assert parse("unix:///run/d.sock").socket_path == "/run/d.sock"
    assert parse("unix:/run/d.sock").socket_path == "/run/d.sock"
    assert parse("https://h", https_proxy="http://p:1").proxy == "http://p:1"
    assert parse("https://a.h", https_proxy="http://p:1", no_proxy="x, .h").proxy is None
    assert parse("http://127.0.0.1:8080", http_proxy="http://p:1").proxy is None


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://h", "http://", "unix:", "http://h:port"])
def test_nonsense_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"makes no sense|no socket"):
        resolve_endpoint(url, None, {})


def test_broken_config_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "cellbox").mkdir()
    file = tmp_path / "cellbox" / "config.toml"
    for text in ("api_url = ", "api_url = 5"):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=r"config\.toml"):
            resolve(tmp_path)
