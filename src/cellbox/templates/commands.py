"""Runs programs of the host for a build step: output line by line to the step's log, failure as `StepError`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cellbox.templates.events import Step, StepError

_LINE_LIMIT = 1024 * 1024
_KEEP = ("PATH", "HOME", "TMPDIR", "LANG")
# How this machine reaches its package mirrors. Nothing of it may get into a template, so only downloads are given it.
_NETWORK_PREFIXES = ("PIP_", "SSL_CERT_", "REQUESTS_CA_", "CURL_CA_", "XDG_CONFIG_")
_NETWORK = ("http_proxy", "https_proxy", "no_proxy")


def host_environment(*, network: bool = False, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a program of the host: an allow-list, never the daemon's own secrets."""
    environment = {name: os.environ[name] for name in _KEEP if name in os.environ}
    if network:
        environment |= {
            name: value
            for name, value in os.environ.items()
            if name.startswith(_NETWORK_PREFIXES) or name.lower() in _NETWORK
        }
    return environment | {"LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"} | dict(extra or {})


async def run_command(
    argv: Sequence[str | Path], step: Step, *, environment: Mapping[str, str], cwd: Path | None = None
) -> None:
    """Run a program to its end. Raises `StepError` unless it ended with 0; on cancellation its whole group dies."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(environment),
            cwd=cwd,
            limit=_LINE_LIMIT,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise StepError(f"{argv[0]} is not installed; `make` in the Cellbox checkout installs it") from None
    assert process.stdout is not None
    try:
        while line := await process.stdout.readline():
            step.log(line.decode(errors="replace"))
        code = await process.wait()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    if code:
        raise StepError(f"{Path(argv[0]).name} ended with exit code {code}", exit_code=code)
