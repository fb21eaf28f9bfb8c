"""The private local daemon: found by its socket, or started once for this user and left running.

Everything it needs to be found lies in one directory that only this user can enter, so that no other user of the
machine can put a daemon of his own in its place.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from cellbox.errors import ConfigurationError, DaemonUnavailableError

START_SECONDS = 60.0
_POLL_SECONDS = 0.02
_IDLE_EXIT_SECONDS = 3600
_MAX_LOG_BYTES = 4 * 1024 * 1024
_TAIL_BYTES = 4096
# The kernel's limit for `sun_path` is 108 bytes with its terminating NUL.
_MAX_SOCKET_PATH_BYTES = 107

_children: list[subprocess.Popen[bytes]] = []


def ensure_daemon() -> str:
    """Return the path of the private daemon's socket, starting the daemon if none answers there. Blocks until it does.

    Raises:
        DaemonUnavailableError: It could not be started; the message has the end of its log.
        ConfigurationError: Its directory is not safe to use.
    """
    directory = runtime_directory()
    path = directory / "daemon.sock"
    if not _accepts(path):
        deadline = time.monotonic() + START_SECONDS
        with _only_one_starter(directory, deadline):
            if not _accepts(path):
                _start(directory, path, deadline)
    return str(path)


def runtime_directory() -> Path:
    """The directory of socket, lock and log, made if need be; `CELLBOX_RUNTIME_DIR` names another one.

    Raises:
        ConfigurationError: It belongs to someone else, is a link, or its path is too long for a socket.
    """
    uid = os.getuid()
    named = os.environ.get("CELLBOX_RUNTIME_DIR")
    directory = Path(named) if named else _runtime_base(uid) / f"cellbox-{uid}"
    if len(os.fsencode(directory / "daemon.sock")) > _MAX_SOCKET_PATH_BYTES:
        raise ConfigurationError(
            f"{directory} is too long for a socket's path; set CELLBOX_RUNTIME_DIR to a shorter directory"
        )
    try:
        directory.mkdir(mode=0o700, parents=bool(named), exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise ConfigurationError(f"The private daemon's directory can't be made: {error}") from error
    # In a shared /tmp anyone could have made it first, to have this user's code run in his daemon.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise ConfigurationError(
            f"{directory} is not a directory of user {uid}; remove it, or set CELLBOX_RUNTIME_DIR to one that is"
        )
    if found.st_mode & 0o077:
        directory.chmod(0o700)
    return directory


def _runtime_base(uid: int) -> Path:
    for candidate in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{uid}"):
        if candidate and os.path.isdir(candidate) and os.stat(candidate).st_uid == uid:  # noqa: PTH112,PTH116
            return Path(candidate)
    return Path("/run") if uid == 0 and os.access("/run", os.W_OK) else Path(tempfile.gettempdir())


def _accepts(path: Path) -> bool:
    """Whether a daemon listens there. A socket file without one is left of a daemon that was killed."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        try:
            connection.connect(str(path))
        except OSError:
            return False
        return True


def _is_healthy(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        try:
            connection.connect(str(path))
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: cellbox\r\nConnection: close\r\n\r\n")
            return connection.recv(64).startswith(b"HTTP/1.1 200")
        except OSError:
            return False


@contextmanager
def _only_one_starter(directory: Path, deadline: float) -> Generator[None, None, None]:
    """Hold the lock under which daemons are started. The kernel drops it when its holder dies."""
    descriptor = os.open(directory / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DaemonUnavailableError(
                        "Another process has been starting the local daemon for too long. Run `cellbox doctor`"
                    ) from None
                time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _start(directory: Path, path: Path, deadline: float) -> None:
    _require_server()
    path.unlink(missing_ok=True)
    log = directory / "daemon.log"
    child = _spawn(path, log)
    while not _is_healthy(path):
        if child.poll() is not None:
            raise DaemonUnavailableError(_failure(f"ended at once with status {child.returncode}", log))
        if time.monotonic() > deadline:
            child.terminate()
            raise DaemonUnavailableError(_failure(f"did not answer within {START_SECONDS:g} s", log))
        time.sleep(_POLL_SECONDS)
    _children.append(child)


def _require_server() -> None:
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise DaemonUnavailableError(
            "No daemon is configured, and a local one needs `pip install 'cellbox[server]'`. "
            "Or set CELLBOX_API_URL and CELLBOX_API_KEY to use a daemon elsewhere"
        )


def serve_command(path: Path) -> list[str]:
    """The program that becomes the daemon."""
    serve = [sys.executable, "-m", "cellbox.cli", "serve"]
    return [*serve, "--listen", f"unix:{path}", "--idle-exit", f"{_IDLE_EXIT_SECONDS:d}"]


def _spawn(path: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the daemon in a session of its own, so that it outlives this process and its terminal.

    Its settings, the data directory among them, come from the environment and files that any daemon of this user reads.
    """
    if log.exists() and log.stat().st_size > _MAX_LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        return subprocess.Popen(
            serve_command(path),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise DaemonUnavailableError(f"The local daemon can't be started: {error}") from error
    finally:
        os.close(descriptor)


def _failure(what: str, log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            tail = file.read().decode("utf-8", "replace").strip()
    except OSError:
        tail = ""
    shown = f"Its log {log} ends:\n{tail}" if tail else f"Its log {log} is empty."
    return f"The local daemon {what}. Run `cellbox doctor` to see what is missing. {shown}"
