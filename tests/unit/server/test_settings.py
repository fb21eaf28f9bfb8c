"""Settings: where they come from, and that a wrong one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellbox.control.settings import Settings
from cellbox.errors import ConfigurationError
from cellbox.server.listen import TcpAddress, UnixAddress, parse_address
from cellbox.server.settings import load_settings

SECRET = "pds_" + "ab" * 16


def test_command_line_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "cellbox.toml"
    file.write_text('listen = "127.0.0.1:1"\nmax_sandboxes = 3\nlog_level = "debug"\nallowed_hosts = ["a"]\n')
    environment = {
        "CELLBOX_LISTEN": "127.0.0.1:2",
        "CELLBOX_MAX_SANDBOXES": "4",
        "CELLBOX_ALLOWED_HOSTS": "b, c",
        "CELLBOX_DATA_DIR": str(tmp_path),
        "CELLBOX_BOOTSTRAP_KEY": SECRET,
        "CELLBOX_IDLE_EXIT_SECONDS": "1.5",
        "CELLBOX_URL": "of another part of Cellbox",
    }
    overrides = {"listen": "127.0.0.1:3", "max_sandboxes": None}
    settings = load_settings(file, environment=environment, overrides=overrides)
    assert settings.listen == "127.0.0.1:3"
    assert settings.max_sandboxes == 4
    assert settings.log_level == "debug"
    assert settings.allowed_hosts == ("b", "c")
    assert settings.data_dir == tmp_path
    assert settings.idle_exit_seconds == 1.5
    assert settings.keepalive_seconds == Settings().keepalive_seconds
    assert settings.bootstrap_key == SECRET
    assert SECRET not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [("MAX_SANDBOXES", "many"), ("MAX_SANDBOXES", "0"), ("LOG_LEVEL", "loud"), ("KEEPALIVE_SECONDS", "-1")],
)
def test_a_bad_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"CELLBOX_{name}"):
        load_settings(environment={f"CELLBOX_{name}": value})


@pytest.mark.parametrize("text", ["nonsense = 1", "max_sandboxes = 0", "max_sandboxes = ["])
def test_a_bad_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cellbox.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"cellbox\.toml"):
        load_settings(file, environment={})
    with pytest.raises(ConfigurationError, match="can't read"):
        load_settings(environment={"CELLBOX_CONFIG": str(tmp_path / "missing.toml")})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", TcpAddress("127.0.0.1", 8080)),
        ("[::1]:80", TcpAddress("::1", 80)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("unix:/run/cellbox.sock", UnixAddress(Path("/run/cellbox.sock"))),
    ],
)
def test_addresses(text: str, address: TcpAddress | UnixAddress) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "8080", ":8080", "host", "host:", "host:x", "host:99999", "::1:80", "unix:relative"]
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ConfigurationError, match="listen"):
        parse_address(text)


def test_what_counts_as_loopback() -> None:
    assert all(TcpAddress(host, 1).is_loopback for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(TcpAddress(host, 1).is_loopback for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"))


def test_every_setting_is_documented() -> None:
    source = Path(load_settings.__code__.co_filename).parents[1] / "control/settings.py"
    text = source.read_text()
    body = text[text.index("class Settings") :]
    for name in Settings.__struct_fields__:
        declaration = body.index(f"    {name}:")
        assert '"""' in body[declaration:].split("\n    ")[1] or '"""' in body[declaration : declaration + 400], name
