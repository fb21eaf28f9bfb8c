"""The daemon's own life: what it refuses to start with, and what it takes over."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cellbox.control.settings import Secret, Settings
from cellbox.errors import ConfigurationError
from cellbox.server.serve import serve
from cellbox.testing.fake_control import FakeControl


async def never_made(_settings: Settings) -> Any:
    raise AssertionError


async def test_listening_to_the_world_without_a_key_is_refused(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings(listen="0.0.0.0:0", bootstrap_key=Secret())
    with pytest.raises(ConfigurationError, match="cellbox key create"):
        await serve(settings, make_control=FakeControl)  # type: ignore[arg-type]


async def test_with_a_key_it_may(start_server: Any) -> None:
    server = start_server(listen="0.0.0.0:0")
    async with httpx2.AsyncClient(verify=False) as client:
        answer = await client.get(f"http://127.0.0.1:{server.address.port}/healthz", headers={"host": "any.example"})
        assert answer.status_code == 200


async def test_a_taken_port_is_noticed_before_anything_is_started(make_settings: Callable[..., Settings]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = make_settings(listen=f"127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(ConfigurationError, match="can't listen"):
            await serve(settings, make_control=never_made)  # type: ignore[arg-type]


def test_a_unix_socket_is_taken_over_only_when_nobody_answers(start_server: Any, tmp_path: Path) -> None:
    path = tmp_path / "cellbox.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    first = start_server(listen=f"unix:{path}")
    with pytest.raises(ConfigurationError, match="another daemon"):
        start_server(listen=f"unix:{path}")
    assert path.exists()
    first.__exit__()
    assert first.exit_code == 0
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(ConfigurationError, match="can't listen"):
        start_server(listen=f"unix:{path}")
    assert path.read_text() == "precious"
