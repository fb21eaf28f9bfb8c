"""Releases, the oldest one accepted, and what each is open to."""

import pytest

from cellbox.engines.gvisor.advisories import applies, is_supported, release_number


@pytest.mark.parametrize(
    ("version", "release", "supported", "open_to"),
    [
        ("0.0~20221219.0", 20221219, False, ["CVE-2025-2713", "CVE-2026-96812"]),
        ("0.0~20240729.0", 20240729, True, ["CVE-2025-2713", "CVE-2026-96812"]),
        ("release-20250318.0", 20250318, True, ["CVE-2025-2713", "CVE-2026-96812"]),
        ("release-20250319.0", 20250319, True, ["CVE-2026-96812"]),
        ("release-20260817.0-12-gabc", 20260817, True, ["CVE-2026-96812"]),
        ("VERSION_MISSING", None, False, ["CVE-2025-2713", "CVE-2026-96812"]),
    ],
)
def test_version_decides(version: str, release: int | None, supported: bool, open_to: list[str]) -> None:
    assert release_number(version) == release
    assert is_supported(version) is supported
    assert [advisory.name for advisory in applies(version)] == open_to


def test_a_flag_can_prove_a_fix() -> None:
    assert applies("release-20260817.0", {"character-device-policy"}) == []
