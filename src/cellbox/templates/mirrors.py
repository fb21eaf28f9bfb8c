"""Finds the Debian mirror that this machine itself uses, so that no host name has to be written down anywhere."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

from cellbox.templates.commands import host_environment
from cellbox.templates.events import StepError

_APT = Path("/etc/apt")
_KEYRINGS = (
    Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    Path("/usr/share/keyrings/debian-archive-keyring.pgp"),
)
_SUITES = frozenset({"bookworm", "trixie", "forky", "duke", "sid", "unstable", "testing", "stable"})
# A third party's source may have a component called `main` too; its suite is not one of Debian's.
_ONE_LINE = re.compile(r"deb\s+(?:\[[^\]]*\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.*)")

_NETWORK_SETTING = re.compile(r'Acquire::(https?::|ftp::|Check-Valid-Until|Check-Date)\S* "[^"\n]+";')


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """A Debian archive and the keyring its signatures are checked with."""

    uri: str
    keyring: Path

    def source(self, suite: str, components: str = "main") -> str:
        """Return the line of `sources.list` for a suite. The signature is always checked."""
        return f"deb [signed-by={self.keyring}] {self.uri} {suite} {components}"


def find_mirror(apt: Path = _APT) -> Mirror:
    """Return the Debian mirror of the machine's own apt. Raises `StepError` with what to do if there is none."""
    keyring = next((path for path in _KEYRINGS if path.exists()), None)
    if keyring is None:
        raise StepError("no Debian archive keyring; install the package debian-archive-keyring")
    uris = [uri for uri, suites in _entries(apt) if _SUITES.intersection(suites)]
    if not uris:
        raise StepError(f"no Debian package source in {apt}; add one (templates are built from the machine's own)")
    return Mirror(uri=uris[0], keyring=keyring)


def _entries(apt: Path) -> list[tuple[str, list[str]]]:
    entries: list[tuple[str, list[str]]] = []
    for path in sorted(apt.glob("sources.list.d/*.sources")):
        entries += _deb822(path.read_text(errors="replace"))
    for path in [apt / "sources.list", *sorted(apt.glob("sources.list.d/*.list"))]:
        if path.exists():
            matches = (_ONE_LINE.fullmatch(line.strip()) for line in path.read_text(errors="replace").splitlines())
            entries += [
                (match["uri"], [match["suite"]]) for match in matches if match and "main" in match["components"].split()
            ]
    return entries


def _deb822(text: str) -> list[tuple[str, list[str]]]:
    entries: list[tuple[str, list[str]]] = []
    for stanza in re.split(r"\n\s*\n", text):
        lines = [line for line in stanza.splitlines() if not line.startswith("#")]
        fields = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        is_debian = "main" in fields.get("components", "").split() and "deb" in fields.get("types", "").split()
        if is_debian and fields.get("enabled", "yes") != "no":
            suites = fields.get("suites", "").split()
            entries += [(uri, suites) for uri in fields.get("uris", "").split()]
    return entries


async def acquire_settings() -> list[str]:
    """Return how this machine's apt reaches its mirrors (proxy, certificates), as lines of an apt configuration."""
    process = await asyncio.create_subprocess_exec(
        "apt-config", "dump", "--format", '%F "%v";%n',
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, env=host_environment(),
    )  # fmt: skip
    output, _ = await process.communicate()
    return [line for line in output.decode(errors="replace").splitlines() if _NETWORK_SETTING.match(line)]
