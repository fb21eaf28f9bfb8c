"""The `runsc` binary: what it is, how each command is spelled, and running them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cellbox.engines.gvisor.launch import Launcher, LaunchFault, Streams
from cellbox.errors import EngineUnavailableError

_INQUIRY_DEADLINE_S = 10.0
"""`runsc --version` takes 8-25 ms; ten seconds only pass on a machine that is on its knees, or with a stub."""

_WANTED_FLAGS = {
    "network": "none",
    "overlay2": "none",
    "platform": "systrap",
    "file-access": "exclusive",
    "host-uds": "none",
    "host-fifo": "none",
    "character-device-policy": "emulated-only",
    "allow-flag-override": "false",
    "cpu-num-from-quota": "true",
    "cpu-num-min": "1",
}
"""Given where the binary has them. `overlay2=none` with a read-only root restores 25 ms faster than an overlay of
gVisor's own, which moreover has no size limit in the releases of 2024: the guest lays its overlay itself."""

_REQUIRED_FLAGS = frozenset({"network", "overlay2", "platform", "file-access", "host-uds", "root", "ignore-cgroups"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Runsc:
    """One `runsc` binary."""

    path: Path
    version: str
    flags: frozenset[str]

    def wanted_flags(self) -> list[str]:
        """The flags that shape a machine, sorted; part of the image key."""
        return sorted(f"--{name}={value}" for name, value in _WANTED_FLAGS.items() if name in self.flags)

    def command(self, root: Path, *arguments: str, ignore_cgroups: bool = False) -> list[str]:
        ignore = ["--ignore-cgroups=true"] if ignore_cgroups else []
        return [str(self.path), f"--root={root}", *self.wanted_flags(), *ignore, *arguments]


async def inspect(launcher: Launcher, path: Path) -> Runsc:
    """Ask a binary what it is. Raises `EngineUnavailableError` if it is none of ours, is broken or hangs."""
    version = (await _ask(launcher, [str(path), "--version"])).splitlines()
    first = version[0].split() if version else []
    if first[:2] != ["runsc", "version"] or len(first) < 3:
        raise EngineUnavailableError(f"{path} does not seem to be gVisor's runsc: `--version` printed {version[:1]}")
    flags: set[str] = set()
    for line in (await _ask(launcher, [str(path), "flags"])).splitlines():
        word = line.split(maxsplit=1)[0] if line.strip() else ""
        if line.startswith("  -"):
            flags.add(word.lstrip("-"))
    if missing := _REQUIRED_FLAGS - flags:
        raise EngineUnavailableError(f"{path} ({first[2]}) lacks flags this engine needs: {', '.join(sorted(missing))}")
    return Runsc(path=path, version=first[2], flags=frozenset(flags))


async def _ask(launcher: Launcher, argv: Sequence[str]) -> str:
    try:
        finished = await launcher.run(argv, deadline_s=_INQUIRY_DEADLINE_S)
    except LaunchFault as error:
        raise EngineUnavailableError(f"runsc is unusable: {error}") from error
    if finished.status != 0:
        said = finished.text.strip()[-300:]
        raise EngineUnavailableError(f"runsc is unusable: `{' '.join(argv)}` ended with {finished.status}: {said}")
    return finished.text


class CommandFault(Exception):  # noqa: N818 - internal: the engine maps it to its own errors
    """A command of runsc failed."""


class Commands:
    """Runs the commands of one binary on one `--root`."""

    def __init__(self, launcher: Launcher, runsc: Runsc, root: Path) -> None:
        self._launcher = launcher
        self._runsc = runsc
        self._root = root

    async def create(
        self, machine_id: str, bundle: Path, streams: Streams, *, ignore_cgroups: bool, deadline_s: float
    ) -> None:
        """Make the sandbox; the guest's standard streams are `streams`, and so are runsc's: it complains on stderr."""
        argv = self._runsc.command(
            self._root, "create", "--bundle", str(bundle), machine_id, ignore_cgroups=ignore_cgroups
        )
        try:
            finished = await self._launcher.run(argv, deadline_s=deadline_s, streams=streams)
        except LaunchFault as error:
            raise CommandFault(str(error)) from error
        if finished.status != 0:
            raise CommandFault(f"runsc create ended with {finished.status}")

    async def start(self, machine_id: str, *, deadline_s: float) -> None:
        await self._run("start", machine_id, deadline_s=deadline_s)

    async def restore(self, machine_id: str, bundle: Path, image: Path, *, deadline_s: float) -> None:
        await self._run(
            "restore", "--detach", "--bundle", str(bundle), f"--image-path={image}", machine_id, deadline_s=deadline_s
        )

    async def checkpoint(self, machine_id: str, image: Path, *, leave_running: bool, deadline_s: float) -> None:
        options = ["--leave-running"] if leave_running else []
        await self._run(
            "checkpoint", "--compression=none", f"--image-path={image}", *options, machine_id, deadline_s=deadline_s
        )

    async def _run(self, *arguments: str, deadline_s: float) -> None:
        try:
            finished = await self._launcher.run(self._runsc.command(self._root, *arguments), deadline_s=deadline_s)
        except LaunchFault as error:
            raise CommandFault(str(error)) from error
        if finished.status != 0:
            raise CommandFault(f"runsc {arguments[0]} ended with {finished.status}: {finished.text.strip()[-2000:]}")


def on_path() -> Path | None:
    """The `runsc` that a shell would find."""
    found = shutil.which("runsc")
    return Path(found) if found else None
