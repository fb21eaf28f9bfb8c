"""Which mirror and key a machine's apt sources name, in both of their formats."""

from pathlib import Path

import pytest

from cellbox.engines.gvisor.debian import Mirror, find_mirror
from cellbox.errors import EngineUnavailableError

_DEB822 = """
Types: deb
URIs: http://other.example/security
Suites: bookworm-security
Components: main

Types: deb deb-src
# a comment
URIs: http://mirror.example/debian
Suites: bookworm
 bookworm-updates
Components: main contrib
Signed-By: /keys/archive.gpg
"""


def _etc(path: Path, files: dict[str, str], *, release: str = "ID=debian\nVERSION_CODENAME=bookworm\n") -> Path:
    (path / "apt/sources.list.d").mkdir(parents=True)
    (path / "os-release").write_text(release)
    for name, text in files.items():
        (path / "apt" / name).write_text(text)
    return path


def test_deb822_sources(tmp_path: Path) -> None:
    etc = _etc(tmp_path, {"sources.list.d/debian.sources": _DEB822})
    expected = Mirror(uri="http://mirror.example/debian", signed_by="/keys/archive.gpg", codename="bookworm")
    assert find_mirror(etc) == expected


def test_one_line_sources(tmp_path: Path) -> None:
    text = (
        "# deb http://old.example bookworm main\n"
        "deb [arch=amd64 signed-by=/keys/a.gpg] http://mirror.example/debian bookworm main non-free\n"
    )
    expected = Mirror(uri="http://mirror.example/debian", signed_by="/keys/a.gpg", codename="bookworm")
    assert find_mirror(_etc(tmp_path, {"sources.list": text})) == expected


def test_a_key_inside_the_source_falls_back_to_trusted_keys(tmp_path: Path) -> None:
    text = _DEB822.replace("/keys/archive.gpg", "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc")
    mirror = find_mirror(_etc(tmp_path, {"sources.list.d/debian.sources": text}))
    assert mirror.signed_by is None


def test_disabled_and_foreign_sources_are_passed_over(tmp_path: Path) -> None:
    text = _DEB822 + "Enabled: no\n"
    other = "deb https://packages.example/sdk sdk-bookworm main\n"
    with pytest.raises(EngineUnavailableError, match="official release"):
        find_mirror(_etc(tmp_path, {"sources.list.d/debian.sources": text, "sources.list.d/sdk.list": other}))


def test_another_distribution_has_no_mirror(tmp_path: Path) -> None:
    etc = _etc(tmp_path, {"sources.list.d/debian.sources": _DEB822}, release="ID=fedora\n")
    with pytest.raises(EngineUnavailableError):
        find_mirror(etc)
