"""Finds a fit `runsc`, or gets one: explicit setting, then PATH, then the private copy, then Debian's mirror."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from cellbox.engines.gvisor import advisories
from cellbox.engines.gvisor.commands import Runsc, inspect, on_path
from cellbox.engines.gvisor.debian import unpack_package
from cellbox.engines.gvisor.launch import Launcher
from cellbox.errors import EngineUnavailableError


async def find_runsc(launcher: Launcher, state: Path, *, explicit: Path | None, allow_unsupported: bool) -> Runsc:
    """The binary to use, without downloading anything.

    A binary named explicitly is used or refused, never replaced by another. Raises `EngineUnavailableError`.
    """
    if explicit is not None:
        return _gated(await inspect(launcher, explicit), allow_unsupported=allow_unsupported)
    rejected: list[str] = []
    for path in (on_path(), private_copy(state)):
        if path is None or not path.exists():
            continue
        try:
            return _gated(await inspect(launcher, path), allow_unsupported=allow_unsupported)
        except EngineUnavailableError as error:
            rejected.append(error.message)
    raise EngineUnavailableError(
        "no usable runsc was found; `cellbox setup` gets one from this machine's Debian mirror, or install gVisor's "
        "official release on the PATH",
        detail="; ".join(rejected) or None,
    )


async def install_runsc(launcher: Launcher, state: Path, *, report: Callable[[str], None] = lambda _: None) -> Runsc:
    """Put the newest `runsc` of the machine's Debian mirror at `private_copy(state)`, at once or not at all."""
    target = private_copy(state)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target.parent) as unpacked:
        await unpack_package(launcher, "runsc", Path(unpacked), report=report)
        binary = Path(unpacked, "usr/bin/runsc")
        if not binary.is_file():
            raise EngineUnavailableError("Debian's package runsc holds no usr/bin/runsc")
        binary.chmod(0o755)
        runsc = _gated(await inspect(launcher, binary), allow_unsupported=False)
        os.replace(binary, target)  # noqa: PTH105 - the atomic one, by name
    report(f"runsc {runsc.version} is ready")
    return Runsc(path=target, version=runsc.version, flags=runsc.flags)


async def ensure_runsc(
    launcher: Launcher,
    state: Path,
    *,
    explicit: Path | None = None,
    allow_unsupported: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> Runsc:
    """`find_runsc`, and `install_runsc` where that finds nothing and no binary was named."""
    try:
        return await find_runsc(launcher, state, explicit=explicit, allow_unsupported=allow_unsupported)
    except EngineUnavailableError:
        if explicit is not None or shutil.which("apt-get") is None:
            raise
    return await install_runsc(launcher, state, report=report)


def private_copy(state: Path) -> Path:
    return state / "bin" / "runsc"


def _gated(runsc: Runsc, *, allow_unsupported: bool) -> Runsc:
    if not allow_unsupported and not advisories.is_supported(runsc.version):
        raise EngineUnavailableError(
            f"{runsc.path} is runsc {runsc.version}; at least release-{advisories.MINIMUM_RELEASE}.0 is needed "
            "(CELLBOX_RUNSC_ALLOW_UNSUPPORTED=1 overrides this at your own risk)"
        )
    return runsc
