"""The machine's own Debian mirror is found in either style of apt source."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellbox.templates import mirrors
from cellbox.templates.events import StepError


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    keyring = tmp_path / "keyring.gpg"
    keyring.touch()
    monkeypatch.setattr(mirrors, "_KEYRINGS", (keyring,))
    (tmp_path / "apt/sources.list.d").mkdir(parents=True)
    return tmp_path / "apt"


def test_deb822_source_is_found(apt: Path) -> None:
    (apt / "sources.list.d/debian.sources").write_text(
        "Types: deb\nURIs: http://mirror.example/debian-security\nSuites: trixie-security\nComponents: main\n\n"
        "# comment\nTypes: deb\nURIs: http://mirror.example/debian\nSuites: trixie trixie-updates\nComponents: main\n"
    )
    mirror = mirrors.find_mirror(apt)
    assert mirror.uri == "http://mirror.example/debian"
    assert mirror.source("trixie") == f"deb [signed-by={mirror.keyring}] http://mirror.example/debian trixie main"


def test_one_line_source_is_found(apt: Path) -> None:
    (apt / "sources.list").write_text(
        "# deb http://no.example/debian bookworm main\n"
        "deb-src http://no.example/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/x] http://mirror.example/debian bookworm main contrib\n"
    )
    assert mirrors.find_mirror(apt).uri == "http://mirror.example/debian"


def test_third_party_and_disabled_sources_are_passed_over(apt: Path) -> None:
    (apt / "sources.list.d/a.sources").write_text(
        "Types: deb\nURIs: http://x.example\nSuites: nodistro\nComponents: main\n"
    )
    (apt / "sources.list.d/b.sources").write_text(
        "Enabled: no\nTypes: deb\nURIs: http://y.example\nSuites: trixie\nComponents: main\n"
    )
    with pytest.raises(StepError, match="no Debian package source"):
        mirrors.find_mirror(apt)


def test_missing_keyring_is_told(apt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "_KEYRINGS", ())
    with pytest.raises(StepError, match="keyring"):
        mirrors.find_mirror(apt)
