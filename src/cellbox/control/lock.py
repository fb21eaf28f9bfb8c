"""One daemon per data directory: two would sweep each other's sandboxes."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from cellbox.errors import ConfigurationError


@contextlib.contextmanager
def exclusive(data_dir: Path) -> Generator[None]:
    """Hold the data directory, or raise `ConfigurationError`. The kernel lets go when we die."""
    descriptor = os.open(data_dir / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise ConfigurationError(
                f"another daemon (pid {holder}) uses {data_dir}: stop it, or choose another `data_dir`"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
