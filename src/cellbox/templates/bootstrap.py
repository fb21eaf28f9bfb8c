"""Bootstraps a Debian root filesystem from the machine's own package mirror with `mmdebstrap`.

Only Debian's own signed packages are unpacked and configured here, which is why this one step runs on the host.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from cellbox.templates.commands import host_environment, run_command
from cellbox.templates.events import Step, StepError
from cellbox.templates.mirrors import acquire_settings, find_mirror

_DPKG_OPTIONS = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    # A build that is interrupted is thrown away whole; syncing each file to disk buys nothing.
    "force-unsafe-io",
)
_APT_OPTIONS = """\
APT::Install-Recommends "false";
APT::Install-Suggests "false";
Acquire::Languages "none";
Acquire::Retries "0";
"""
_SOURCES = """\
# No package source is configured: this sandbox has no network. Packages are put into a template when it is built,
# with `apt = [...]` in its recipe.
"""


async def bootstrap(suite: str, packages: Sequence[str], target: Path, step: Step) -> None:
    """Build the root filesystem of `suite` with `packages` in `target`, which must not exist.

    Nothing about this machine stays in it: no mirror, no proxy, no host name, no resolver.
    """
    mirror = find_mirror()
    if shutil.which("mmdebstrap") is None:
        raise StepError("mmdebstrap is not installed: `apt-get install mmdebstrap`, or `make` in the Cellbox checkout")
    settings = [f"--aptopt={setting}" for setting in await acquire_settings()]
    await run_command(
        [
            "mmdebstrap",
            "--mode=root" if os.geteuid() == 0 else "--mode=unshare",
            "--variant=minbase",
            "--format=directory",
            "--skip=output/dev",  # no device nodes: the engine brings its own
            '--aptopt=APT::Install-Recommends "false"',
            *settings,
            *(f"--dpkgopt={option}" for option in _DPKG_OPTIONS),
            *([f"--include={','.join(packages)}"] if packages else []),
            suite,
            target,
            mirror.source(suite),
        ],
        step,
        environment=host_environment(network=True, extra={"TMPDIR": str(target.parent)}),
    )
    _forget_the_host(target)


def _forget_the_host(rootfs: Path) -> None:
    # What was just bootstrapped holds nothing but Debian's packages, so plain paths are safe here.
    etc = rootfs / "etc"
    for leftover in (etc / "apt/apt.conf.d/99mmdebstrap", etc / "resolv.conf", etc / "hostname", etc / "machine-id"):
        leftover.unlink(missing_ok=True)
    (etc / "apt/apt.conf.d/90cellbox").write_text(_APT_OPTIONS)
    (etc / "apt/sources.list").write_text(_SOURCES)
    (etc / "dpkg/dpkg.cfg.d/99mmdebstrap").rename(etc / "dpkg/dpkg.cfg.d/90cellbox")
    for path in (rootfs / "var/log").rglob("*.log"):
        path.write_bytes(b"")
    for path in sorted((rootfs / "dev").iterdir(), reverse=True):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in ("in", "out", "rw", "root"):
        (rootfs / ".cellbox" / name).mkdir(parents=True, exist_ok=True)
