"""Downloads what a template's packages need, on the host, for the target: Debian packages with apt, wheels with pip.

Nothing that is downloaded runs on the host: apt only downloads, and pip takes wheels alone, so no `setup.py` is ever
executed. What was downloaded stays in a cache under the data directory, whole or not at all.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import platform
import secrets
import shutil
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from cellbox.templates.commands import host_environment, run_command
from cellbox.templates.events import Step, StepError
from cellbox.templates.mirrors import acquire_settings, find_mirror
from cellbox.templates.recipe import Recipe

_LISTS_MAX_AGE_SECONDS = 6 * 3600
# From Debian 13's glibc down. pip takes only the exact tags it is given.
_GLIBC_MINORS = (*range(41, 23, -1), 17, 12, 5)
_OLD_TAGS = {"x86_64": ("manylinux2014", "manylinux2010", "manylinux1"), "aarch64": ("manylinux2014",)}
_DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Downloads:
    """The cache of packages, and the ways to fill it."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    async def wheels(self, recipe: Recipe, python: str, step: Step) -> Path:
        """Return a directory with every wheel the recipe needs under `python` (as `3.13`) and `requirements.txt`."""
        if recipe.lock is not None:
            requirements = recipe.lock.read_text()
        else:
            requirements = "".join(f"{requirement}\n" for requirement in recipe.file.pip)
        own = sorted(recipe.wheels.glob("*.whl")) if recipe.wheels else []
        key = _key(
            python, platform.machine(), requirements, *(f"{path.name} {path.stat().st_mtime_ns}" for path in own)
        )
        async with self._entry("wheels", key, step) as (target, is_new):
            if is_new:
                (target / "requirements.txt").write_text(requirements)
                await run_command(
                    [
                        sys.executable, "-m", "pip", "download", "--no-input", "--progress-bar=off",
                        "--only-binary=:all:", "--implementation=cp", f"--python-version={python}",
                        f"--abi=cp{python.replace('.', '')}", "--abi=abi3", "--abi=none", *_platform_options(),
                        *(["--require-hashes", "--no-deps"] if recipe.lock is not None else []),
                        *([f"--find-links={recipe.wheels.resolve()}"] if recipe.wheels else []),
                        "-d", target, "-r", target / "requirements.txt",
                    ],
                    step,
                    environment=host_environment(network=True),
                )  # fmt: skip
        return self._cache / "wheels" / key

    async def debs(self, names: Sequence[str], suite: str, status: bytes, step: Step) -> Path:
        """Return a directory with the Debian packages that `names` need on top of the dpkg database `status`."""
        key = _key(suite, platform.machine(), hashlib.sha256(status).hexdigest(), *sorted(names))
        async with self._entry("debs", key, step) as (target, is_new):
            if is_new:
                await self.refresh_lists(suite, step)
                (target / "partial").mkdir()
                (target / "status").write_bytes(status)
                command = [
                    "apt-get", "install", "--quiet", "--yes", "--download-only", "--no-install-recommends",
                    "-o", f"Dir::State::status={target / 'status'}", "-o", f"Dir::Cache::archives={target}",
                    "-o", f"Dir::State::extended_states={target / 'extended_states'}", "--", *names,
                ]  # fmt: skip
                try:
                    await run_command(command, step, environment=self._apt_environment(suite))
                except StepError:
                    # Most likely the mirror moved on since the lists were fetched.
                    await self.refresh_lists(suite, step, max_age_seconds=0)
                    await run_command(command, step, environment=self._apt_environment(suite))
                for leftover in ("status", "lock", "extended_states"):
                    (target / leftover).unlink(missing_ok=True)
                shutil.rmtree(target / "partial")
        return self._cache / "debs" / key

    async def refresh_lists(self, suite: str, step: Step, *, max_age_seconds: float = _LISTS_MAX_AGE_SECONDS) -> None:
        """Fetch the package lists of `suite` unless they are recent."""
        folder = self._cache / "apt" / suite
        (folder / "lists/partial").mkdir(parents=True, exist_ok=True)
        (folder / "parts").mkdir(exist_ok=True)
        stamp = folder / "fetched"
        async with locked(folder / "lock", step):
            if stamp.exists() and time.time() - stamp.stat().st_mtime < max_age_seconds:
                return
            (folder / "sources.list").write_text(find_mirror().source(suite) + "\n")
            (folder / "apt.conf").write_text(await self._apt_configuration(folder))
            await run_command(["apt-get", "update", "--quiet"], step, environment=self._apt_environment(suite))
            stamp.touch()

    async def _apt_configuration(self, folder: Path) -> str:
        # apt with a life of its own: of the machine's settings it keeps only how to reach the mirror, and none of its
        # hooks, pins, third-party sources or caches.
        architecture = _DEBIAN_ARCHITECTURES.get(platform.machine(), platform.machine())
        settings = {
            "Dir::Etc::main": "/dev/null",
            "Dir::Etc::parts": folder / "parts",
            "Dir::Etc::sourcelist": folder / "sources.list",
            "Dir::Etc::sourceparts": folder / "parts",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": folder / "parts",
            "Dir::State::lists": folder / "lists",
            "Dir::State::status": "/dev/null",
            "Dir::Cache": folder,
            "Dir::Log": folder,
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "",  # the cache belongs to us, not to _apt
            "Acquire::Languages": "none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "Debug::NoLocking": "true",  # we hold a lock of our own
        }
        lines = [f'{name} "{value}";' for name, value in settings.items()]
        return "\n".join([*lines, *await acquire_settings()]) + "\n"

    def _apt_environment(self, suite: str) -> dict[str, str]:
        configuration = self._cache / "apt" / suite / "apt.conf"
        return host_environment(network=True, extra={"APT_CONFIG": str(configuration)})

    @asynccontextmanager
    async def _entry(self, kind: str, key: str, step: Step) -> AsyncGenerator[tuple[Path, bool]]:
        """Give a directory to fill and say if it is new; it becomes the cache's entry when the block ends well."""
        folder = self._cache / kind
        folder.mkdir(parents=True, exist_ok=True)
        entry = folder / key
        async with locked(folder / f"{key}.lock", step):
            if entry.exists():
                os.utime(entry)
                yield entry, False
                return
            partial = folder / f"{key}.{secrets.token_hex(4)}.partial"
            partial.mkdir()
            try:
                yield partial, True
                partial.rename(entry)
            finally:
                shutil.rmtree(partial, ignore_errors=True)


@asynccontextmanager
async def locked(path: Path, step: Step | None = None) -> AsyncGenerator[None]:
    """Hold a lock file against other tasks and other processes, waiting for it without blocking the loop."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        is_waiting = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not is_waiting and step is not None:
                    step.log("waiting for another build that does the same")
                is_waiting = True
                await asyncio.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def _platform_options() -> list[str]:
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS]
    tags += [f"{tag}_{machine}" for tag in _OLD_TAGS.get(machine, ())]
    return [f"--platform={tag}" for tag in tags]


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]
