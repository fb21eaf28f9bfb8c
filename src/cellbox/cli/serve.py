"""`cellbox serve`: the daemon in the foreground. Everything else about it is in `cellbox.server`."""

from __future__ import annotations

from pathlib import Path

from cellbox.cli.about import DataDir, EngineName
from cellbox.errors import DaemonUnavailableError


def serve(
    *,
    listen: str | None = None,
    data_dir: DataDir = None,
    config: Path | None = None,
    engine: EngineName = None,
    idle_exit: float | None = None,
    log_level: str | None = None,
) -> int:
    """Run the daemon until SIGTERM or Ctrl-C; then its sandboxes are killed and everything of them is removed.

    What is not said here comes from environment variables (CELLBOX_LISTEN, …), then the configuration file, then
    defaults: see docs/settings.md.

    Args:
        listen: HOST:PORT, or `unix:/PATH` for a socket that only you can use. Default 127.0.0.1:8080. Elsewhere than on
            loopback only with a key: make one with `cellbox key create` first.
        data_dir: Where database, templates and sandboxes lie; one daemon at a time.
        config: A TOML file with settings.
        engine: Which isolation engine to use.
        idle_exit: Exit after so many seconds without a sandbox or a request.
        log_level: debug, info, warning or error.
    """
    try:
        from cellbox.server.serve import run
    except ImportError as error:
        raise DaemonUnavailableError(
            f"The daemon's packages are not installed ({error.name} is missing): pip install 'cellbox[server]'"
        ) from error
    from cellbox.server.settings import load_settings

    settings = load_settings(
        config,
        overrides={
            "listen": listen,
            "data_dir": data_dir,
            "engine": engine,
            "idle_exit_seconds": idle_exit,
            "log_level": log_level,
        },
    )
    return run(settings)
