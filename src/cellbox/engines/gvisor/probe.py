"""Finds out what this host can do by doing it once: boots the smallest guest, freezes, saves and restores it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import secrets
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import msgspec

from cellbox.engines.base import EngineFault, Machine, MachineSpec, Probe, Problem
from cellbox.engines.gvisor import advisories, self_test_guest
from cellbox.engines.gvisor.cgroups import CgroupTree
from cellbox.engines.gvisor.commands import Runsc
from cellbox.engines.gvisor.starts import Mode
from cellbox.engines.gvisor.user_namespace import describe_user

_ANSWER_DEADLINE_S = 10.0
_FORMAT = 1

Start = Callable[[MachineSpec, Path | None, Mode], Awaitable[Machine]]
"""Boots, or restores an image, in a mode."""


class Findings(msgspec.Struct, kw_only=True):
    """What the probe found; kept in a file until the binary, the host's boot or the user changes."""

    key: str
    usable: bool
    cgroups: bool = False
    control: Literal["socket", "commands"] = "socket"
    failures: list[str] = []
    """What failed on the way to the mode that works, or everything."""

    @property
    def mode(self) -> Mode:
        return Mode(cgroups=self.cgroups, control=self.control)


def key_of(runsc: Runsc) -> str:
    """Findings hold for one build at one place, one boot of the host, one user."""
    status = runsc.path.stat()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = Path("/proc/self/ns/user").readlink()
    parts = (_FORMAT, runsc.path, status.st_size, status.st_mtime_ns, runsc.version, boot_id, namespace, os.geteuid())
    return "|".join(str(part) for part in parts)


def load(cache: Path, key: str) -> Findings | None:
    """Earlier findings, if they are about the same."""
    try:
        findings = msgspec.json.decode(cache.read_bytes(), type=Findings)
    except (OSError, msgspec.MsgspecError):
        return None
    return findings if findings.key == key and findings.usable else None


def save(cache: Path, findings: Findings) -> None:
    with contextlib.suppress(OSError):  # it is only remembered to save 0.3 s
        temporary = cache.with_suffix(".part")
        temporary.write_bytes(msgspec.json.encode(findings))
        temporary.replace(cache)


async def examine(start: Start, scratch: Path, key: str) -> Findings:
    """Try the modes from the best down and stop at the first in which everything works. About 0.3 s.

    `scratch` is an empty directory of the caller.
    """
    failures: list[str] = []
    if not self_test_guest.is_available():
        return Findings(key=key, usable=False, failures=[f"gVisor does not run on {platform.machine()}"])
    rootfs = scratch / "rootfs"
    rootfs.mkdir()
    self_test_guest.write_rootfs(rootfs)
    controls: tuple[Literal["socket", "commands"], ...] = ("socket", "commands")
    for cgroups in (True, False):
        for control in controls:
            mode = Mode(cgroups=cgroups, control=control)
            image = scratch / f"image-{cgroups}-{control}"
            image.mkdir()
            try:
                await _try(start, rootfs, image, mode)
            except (EngineFault, OSError, TimeoutError) as error:
                limits = "with limits" if cgroups else "without limits"
                failures.append(f"{limits}, by {control}: {error or type(error).__name__}")
            else:
                return Findings(key=key, usable=True, cgroups=cgroups, control=control, failures=failures)
            finally:
                shutil.rmtree(image, ignore_errors=True)
    return Findings(key=key, usable=False, failures=failures)


async def _try(start: Start, rootfs: Path, image: Path, mode: Mode) -> None:
    machine = await start(_spec(rootfs), None, mode)
    try:
        await _expect_echo(machine)
        if mode.control == "socket" or mode.cgroups:
            await machine.pause()
            await machine.resume()
        await machine.checkpoint(image, leave_running=True)
        await _expect_echo(machine)
    finally:
        await _discard(machine)
    machine = await start(_spec(rootfs), image, mode)
    try:
        await _expect_echo(machine)
    finally:
        await _discard(machine)


def _spec(rootfs: Path) -> MachineSpec:
    return MachineSpec(
        machine_id=f"0-{secrets.token_hex(8)}",
        rootfs=rootfs,
        argv=(self_test_guest.PROGRAM,),
        env={},
        memory_mb=64,
        disk_mb=1,
        cpu=1,
        tasks=16,
    )


async def _expect_echo(machine: Machine) -> None:
    """Raises `TimeoutError` or `EngineFault` unless the guest writes back what it is sent."""
    loop = asyncio.get_running_loop()
    token, reader = secrets.token_bytes(8), machine.channel.reader
    readable = asyncio.Event()
    loop.add_reader(reader, readable.set)
    try:
        os.write(machine.channel.writer, token)
        async with asyncio.timeout(_ANSWER_DEADLINE_S):
            await readable.wait()
        answer = os.read(reader, 64)
    finally:
        loop.remove_reader(reader)
    if answer != token:
        raise EngineFault(f"the guest answered {answer!r} to {token!r}")


async def _discard(machine: Machine) -> None:
    await machine.kill()
    for descriptor in (machine.channel.reader, machine.channel.writer, machine.channel.console):
        os.close(descriptor)


def report(engine: str, runsc: Runsc, findings: Findings, tree: CgroupTree, *, gated: bool) -> Probe:
    """The findings as the rest of the house reads them. `gated`: the release is one this engine accepts."""
    has = findings.cgroups
    problems: list[Problem] = []
    if not findings.usable:
        problems.append(
            Problem(summary="; ".join(findings.failures), fix="see https://gvisor.dev/docs/user_guide/", fatal=True)
        )
    elif not has:
        problems.append(
            Problem(
                summary="memory, cpu and task limits are not enforced on the host: " + "; ".join(findings.failures[:1]),
                fix="run the daemon as root where its cgroups are writable (systemd: Delegate=yes)",
                fatal=False,
            )
        )
    if not gated:
        problems.append(
            Problem(
                summary=f"runsc {runsc.version} is too old for this engine and used all the same, as was set",
                fix="install a newer release and unset CELLBOX_RUNSC_ALLOW_UNSUPPORTED",
                fatal=False,
            )
        )
    open_to = tuple(str(advisory) for advisory in advisories.applies(runsc.version, runsc.flags))
    return Probe(
        engine=engine,
        version=runsc.version,
        usable=findings.usable,
        enforced={
            "memory": has,
            "cpu": has,
            "tasks": has,
            "freeze": findings.usable and (has or findings.control == "socket"),
        },
        facts={
            "binary": str(runsc.path),
            "platform": "systrap",
            "cgroups": tree.version if has else "not used",
            "control": findings.control,
            "user": describe_user(),
        },
        problems=tuple(problems),
        advisories=open_to,
    )
