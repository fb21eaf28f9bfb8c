"""The private daemon, with a stand-in program for `cellbox serve`."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellbox.client import _local
from cellbox.errors import ConfigurationError, DaemonUnavailableError

SERVE = """
import http.server, os, socketserver, sys
path = sys.argv[-1].removeprefix("unix:")
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def address_string(self): return "local"
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
with open(os.path.join(os.path.dirname(path), "starts"), "a") as file: file.write("x")
socketserver.ThreadingUnixStreamServer(path, Handler).serve_forever()
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("CELLBOX_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(_local, "_children", [])
    yield tmp_path / "run"
    for child in _local._children:
        child.terminate()
        child.wait()


def serve_with(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    def command(path: Path) -> list[str]:
        return [sys.executable, "-c", program, f"unix:{path}"]

    monkeypatch.setattr(_local, "serve_command", command)


def test_concurrent_callers_start_one(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_with(monkeypatch, SERVE)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(_local.ensure_daemon())) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [str(directory / "daemon.sock")] * 5
    assert (directory / "starts").read_text() == "x"
    assert directory.stat().st_mode & 0o777 == 0o700


def test_socket_of_a_dead_daemon_is_replaced(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_with(monkeypatch, SERVE)
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / "daemon.sock"))
    _local.ensure_daemon()
    assert (directory / "starts").read_text() == "x"


def test_failed_start_shows_the_end_of_the_log(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_with(monkeypatch, "print('no engine found', flush=True); raise SystemExit(3)")
    with pytest.raises(DaemonUnavailableError, match=r"(?s)status 3.*cellbox doctor.*no engine found"):
        _local.ensure_daemon()


def test_start_without_the_server_extra(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _local.importlib.util.find_spec

    def without_uvicorn(name: str, *rest: Any) -> Any:
        return None if name == "uvicorn" else real(name, *rest)

    monkeypatch.setattr(_local.importlib.util, "find_spec", without_uvicorn)
    with pytest.raises(DaemonUnavailableError, match=r"cellbox\[server\]"):
        _local.ensure_daemon()


def test_directory_of_someone_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("CELLBOX_RUNTIME_DIR", str(tmp_path / "link"))
    with pytest.raises(ConfigurationError, match="not a directory of user"):
        _local.runtime_directory()
    monkeypatch.setenv("CELLBOX_RUNTIME_DIR", str(tmp_path / ("x" * 100)))
    with pytest.raises(ConfigurationError, match="too long"):
        _local.runtime_directory()
