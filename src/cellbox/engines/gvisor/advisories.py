"""Known advisories of gVisor by release, and the oldest release this engine accepts."""

from __future__ import annotations

import re
from dataclasses import dataclass

MINIMUM_RELEASE = 20240729
"""The release of Debian 13. Older ones lack the systrap platform or the checkpoint format this engine relies on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """A published flaw and the first release without it."""

    name: str
    fixed_in: int
    """Release date as a number, `release-20250319.0` → 20250319."""
    summary: str

    def __str__(self) -> str:
        return f"{self.name}: {self.summary} (fixed in release-{self.fixed_in}.0)"


KNOWN = (
    Advisory(
        name="CVE-2025-2713",
        fixed_in=20250319,
        summary="local privilege escalation: file access checks of runsc were made with too many rights; "
        "needs a local user who may run runsc",
    ),
    Advisory(
        name="CVE-2026-96812",
        # The fix is commit 573a9e73cf844f; the first release known to have `--character-device-policy` is this one.
        fixed_in=20260817,
        summary="escape through a character device node shipped in an image; needs CUSE on the host and control of the "
        "image. Cellbox refuses device nodes in images whatever the release",
    ),
)


def release_number(version: str) -> int | None:
    """The release date in a version such as `release-20250319.0` or `0.0~20240729.0`; `None` if it has none."""
    found = re.search(r"(?<!\d)(20\d{6})(?!\d)", version)
    return int(found[1]) if found else None


def applies(version: str) -> list[Advisory]:
    """The known advisories that a version is open to; all of them if it names no release."""
    release = release_number(version)
    return [advisory for advisory in KNOWN if release is None or release < advisory.fixed_in]


def is_supported(version: str) -> bool:
    release = release_number(version)
    return release is not None and release >= MINIMUM_RELEASE
