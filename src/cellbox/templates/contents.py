"""Finds out from the host what a root filesystem contains: which Debian, which Python, which packages.

Reads only, through `rootfs.py`, and takes what it reads for what it is: text from a stranger.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from cellbox.templates import rootfs

_PYTHON = re.compile(r"(?:.*/)?python(3\.\d{1,2})")
_SUITE = re.compile(r"[a-z]+")
_DISTRIBUTION = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)-(?P<version>[A-Za-z0-9.!+_]+)\.dist-info")
_MOST_PACKAGES = 5000
_PYTHON_FOLDERS = ("/usr/local/bin", "/usr/bin")


def find_python(root: Path) -> str:
    """Return the version of the root's `python3` as `3.13`, empty if there is none."""
    for folder in _PYTHON_FOLDERS:
        target = rootfs.read_link(root, f"{folder}/python3")
        if target is not None and (match := _PYTHON.fullmatch(target)):
            return match[1]
    return ""


def find_suite(root: Path) -> str:
    """Return the code name of the Debian in the root, empty if it is none."""
    text = (rootfs.read_file(root, "/usr/lib/os-release") or b"").decode(errors="replace")
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    suite = fields.get("VERSION_CODENAME", "").strip("\"'")
    return suite if fields.get("ID", "").strip("\"'") == "debian" and _SUITE.fullmatch(suite) else ""


def find_packages(root: Path) -> dict[str, dict[str, str]]:
    """Return the packages of dpkg and of pip, with their versions."""
    return {"apt": _debian_packages(root), "pip": _python_packages(root)}


def _debian_packages(root: Path) -> dict[str, str]:
    packages: dict[str, str] = {}
    text = (rootfs.read_file(root, "/var/lib/dpkg/status") or b"").decode(errors="replace")
    for stanza in text.split("\n\n")[:_MOST_PACKAGES]:
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed") and "Package" in fields:
            packages[fields["Package"][:128]] = fields.get("Version", "")[:128]
    return packages


def _python_packages(root: Path) -> dict[str, str]:
    packages: dict[str, str] = {}
    version = find_python(root)
    for folder in ("/usr/local/lib", "/usr/lib"):
        for kind in ("dist-packages", "site-packages"):
            with suppress(OSError), rootfs.open_directory(root, f"{folder}/python{version}/{kind}") as directory:
                matches = (_DISTRIBUTION.fullmatch(name) for name in sorted(os.listdir(directory))[:_MOST_PACKAGES])  # noqa: PTH208
                packages |= {match["name"]: match["version"] for match in matches if match}
    return packages
