"""Known advisories of gVisor by release, and the oldest release this engine accepts."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

MINIMUM_RELEASE = 20240729
"""The release of Debian 13. Older ones have another checkpoint format or control interface, or lack systrap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """A published flaw and how to tell a build without it."""

    name: str
    summary: str
    fixed_in: int | None = None
    """First release without it, as a number: `release-20250319.0` → 20250319."""
    fixed_with_flag: str | None = None
    """A flag of runsc that came with the fix, where no release number was published."""

    def applies_to(self, release: int | None, flags: Collection[str]) -> bool:
        if self.fixed_with_flag is not None:
            return self.fixed_with_flag not in flags
        return release is None or self.fixed_in is None or release < self.fixed_in

    def __str__(self) -> str:
        if self.fixed_in is not None:
            return f"{self.name}: {self.summary} (fixed in release-{self.fixed_in}.0)"
        return f"{self.name}: {self.summary} (fixed where runsc has --{self.fixed_with_flag})"


KNOWN = (
    Advisory(
        name="CVE-2025-2713",
        fixed_in=20250319,
        summary="a local user of the host who runs runsc could read files that are not theirs",
    ),
    Advisory(
        name="CVE-2026-96812",
        fixed_with_flag="character-device-policy",
        summary="escape through a character device node shipped in an image; needs CUSE on the host and control of the "
        "image. Template builds refuse device nodes whatever the release",
    ),
)


def release_number(version: str) -> int | None:
    """The release date in a version such as `release-20250319.0` or `0.0~20240729.0`; `None` if it has none."""
    found = re.search(r"(?<!\d)(20\d{6})(?!\d)", version)
    return int(found[1]) if found else None


def applies(version: str, flags: Collection[str] = ()) -> list[Advisory]:
    """The known advisories a build is open to; all that can't be ruled out if it names no release."""
    return [advisory for advisory in KNOWN if advisory.applies_to(release_number(version), flags)]


def is_supported(version: str) -> bool:
    release = release_number(version)
    return release is not None and release >= MINIMUM_RELEASE
