"""Takes one package from the machine's own Debian mirror, out of a newer suite, without touching the system's apt.

Which mirror, and which key signs it, is read from the machine's apt sources at run time. The package is verified by apt
as always, unpacked with `dpkg-deb -x`, and never installed.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cellbox.engines.gvisor.launch import Finished, Launcher, LaunchFault
from cellbox.errors import EngineUnavailableError

_SUITES = ("trixie",)
"""Looked at beside the machine's own; apt takes the newest version of all. A suite the mirror lacks is passed over.

Named, not "stable": the rebuild of the same release in the suites after it (with Go 1.26) crashes at a guest's first
fork.
"""

_UPDATE_DEADLINE_S = 300.0
_DOWNLOAD_DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """Where a machine gets Debian from."""

    uri: str
    signed_by: str | None
    """Path of the keyring; `None`: apt's trusted keys."""
    codename: str


async def unpack_package(
    launcher: Launcher, name: str, into: Path, *, report: Callable[[str], None], etc: Path = Path("/etc")
) -> None:
    """Fetch the newest version of a package and unpack it into the empty directory `into`.

    Raises `EngineUnavailableError` with the step that failed. Takes 5-60 s, mostly for the package lists.
    """
    mirror = find_mirror(etc)
    with tempfile.TemporaryDirectory(prefix="cellbox-apt-") as work_name:
        work = Path(work_name)
        options = _private_apt(work, mirror)
        report(f"reading the package lists of {mirror.uri}")
        # Its status is not looked at: one suite of several that is missing is no reason to stop.
        await _run(launcher, ["apt-get", *options, "update"], work, _UPDATE_DEADLINE_S)
        report(f"downloading {name}")
        download = await _run(launcher, ["apt-get", *options, "download", name], work, _DOWNLOAD_DEADLINE_S)
        packages = sorted(work.glob("*.deb"))
        if download.status != 0 or not packages:
            raise EngineUnavailableError(
                f"no package {name} could be had from {mirror.uri}: {download.text.strip()[-400:]}"
            )
        unpacked = await _run(launcher, ["dpkg-deb", "-x", str(packages[-1]), str(into)], work, _DOWNLOAD_DEADLINE_S)
        if unpacked.status != 0:
            raise EngineUnavailableError(f"{packages[-1].name} can't be unpacked: {unpacked.text.strip()[-400:]}")


def _private_apt(work: Path, mirror: Mirror) -> list[str]:
    """Options that keep apt within `work`; proxies and such still come from the machine's configuration."""
    for name in ("state/lists/partial", "cache/archives/partial", "parts"):
        (work / name).mkdir(parents=True)
    (work / "status").touch()
    signed = f" [signed-by={mirror.signed_by}]" if mirror.signed_by else ""
    suites = dict.fromkeys([mirror.codename, *_SUITES])
    (work / "sources.list").write_text("".join(f"deb{signed} {mirror.uri} {suite} main\n" for suite in suites))
    settings = {
        "Dir::State": work / "state",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": work / "parts",
        "Dir::Etc::preferencesparts": work / "parts",
        "APT::Sandbox::User": "root",  # its own user could not write here
        "Acquire::Languages": "none",
        "Acquire::Retries": 2,
    }
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")] + ["-q"]


async def _run(launcher: Launcher, argv: list[str], work: Path, deadline_s: float) -> Finished:
    kept = ("PATH", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    env = {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C.UTF-8"}
    try:
        return await launcher.run(argv, deadline_s=deadline_s, env=env, cwd=work)
    except LaunchFault as error:
        raise EngineUnavailableError(f"this machine's package tools don't work: {error}") from error


def find_mirror(etc: Path = Path("/etc")) -> Mirror:
    """The mirror of the running Debian release. Raises `EngineUnavailableError` where there is none."""
    codename = _codename(etc / "os-release")
    for mirror in _mirrors(etc / "apt", codename):
        return mirror
    raise EngineUnavailableError(
        "runsc is not installed and this is no Debian machine with a package mirror; install gVisor's official release "
        "and put `runsc` on the PATH, or name it with CELLBOX_RUNSC"
    )


def _codename(os_release: Path) -> str:
    try:
        text = os_release.read_text()
    except OSError:
        return ""
    found = re.search(r'^VERSION_CODENAME="?([\w-]+)', text, re.MULTILINE)
    return found[1] if found and re.search(r'^ID="?debian\b', text, re.MULTILINE) else ""


def _mirrors(apt: Path, codename: str) -> Iterator[Mirror]:
    if not codename:
        return
    for path in sorted((apt / "sources.list.d").glob("*.sources")):
        yield from _deb822(path.read_text(errors="replace"), codename)
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]:
        if path.exists():
            yield from _one_line(path.read_text(errors="replace"), codename)


def _deb822(text: str, codename: str) -> Iterator[Mirror]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')}\n{line.strip()}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        words = {key: value.split() for key, value in fields.items()}
        is_ours = "deb" in words.get("types", []) and codename in words.get("suites", [])
        if is_ours and "main" in words.get("components", []) and fields.get("enabled", "yes").lower() != "no":
            signed_by = words.get("signed-by", [])
            embedded = len(signed_by) != 1 or not signed_by[0].startswith("/")
            yield Mirror(uri=words["uris"][0], signed_by=None if embedded else signed_by[0], codename=codename)


def _one_line(text: str, codename: str) -> Iterator[Mirror]:
    for line in text.splitlines():
        found = re.match(r"\s*deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+(.*)", line)
        if found and found[3] == codename and "main" in found[4].split():
            signed_by = re.search(r"(?:^|\s)signed-by=(\S+)", found[1] or "")
            yield Mirror(uri=found[2], signed_by=signed_by[1] if signed_by else None, codename=codename)
