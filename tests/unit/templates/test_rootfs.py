"""The host follows no link inside a root filesystem, and refuses what no template may have."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from cellbox.templates import rootfs
from cellbox.templates.contents import find_packages, find_python, find_suite
from cellbox.templates.events import StepError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    (tmp_path / "root/.cellbox").mkdir(parents=True)
    return tmp_path / "root"


def test_write_replaces_a_link_and_not_its_target(root: Path) -> None:
    (root / ".cellbox/guest.pyz").symlink_to("../../outside/secret")
    rootfs.write_file(root, "/.cellbox/guest.pyz", b"new", 0o600)
    assert (root.parent / "outside/secret").read_text() == "secret"
    assert (root / ".cellbox/guest.pyz").read_bytes() == b"new"
    assert (root / ".cellbox/guest.pyz").stat().st_mode & 0o777 == 0o600


def test_write_through_a_linked_directory_is_refused(root: Path) -> None:
    (root / ".cellbox").rmdir()
    (root / ".cellbox").symlink_to("../outside")
    with pytest.raises(OSError, match=r"Not a directory|Too many"):
        rootfs.write_file(root, "/.cellbox/secret", b"new")
    assert [path.name for path in (root.parent / "outside").iterdir()] == ["secret"]


def test_read_follows_no_link(root: Path) -> None:
    (root / "link").symlink_to("../outside/secret")
    (root / "folder").symlink_to("../outside")
    os.mkfifo(root / "pipe")
    assert rootfs.read_file(root, "/link") is None
    assert rootfs.read_file(root, "/folder/secret") is None
    assert rootfs.read_file(root, "/pipe") is None
    assert rootfs.read_file(root, "/missing") is None
    assert rootfs.read_link(root, "/link") == "../outside/secret"
    assert rootfs.read_link(root, "/folder/secret") is None


def test_climbing_path_is_refused(root: Path) -> None:
    with pytest.raises(ValueError, match="leaves"), rootfs.open_directory(root, "/.cellbox/../.."):
        pass


async def test_verify_counts_hard_links_once(root: Path) -> None:
    (root / "a").write_bytes(b"x" * 100_000)
    alone = await rootfs.verify(root)
    os.link(root / "a", root / "b")
    both = await rootfs.verify(root)
    assert both.files == alone.files + 1
    assert both.size_bytes == alone.size_bytes


async def test_verify_names_pipes_and_sockets(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(root / "a-pipe")
    monkeypatch.chdir(root)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("b-socket")
        with pytest.raises(StepError, match=r"/a-pipe \(pipe\), /b-socket \(socket\)"):
            await rootfs.verify(root)


def test_contents_are_found(root: Path) -> None:
    for folder in (
        "usr/bin",
        "usr/lib",
        "var/lib/dpkg",
        "usr/local/lib/python3.13/dist-packages/numpy-2.5.5.dist-info",
    ):
        (root / folder).mkdir(parents=True)
    (root / "usr/bin/python3").symlink_to("python3.13")
    (root / "usr/lib/os-release").write_text('ID=debian\nVERSION_CODENAME="trixie"\n')
    (root / "var/lib/dpkg/status").write_text(
        "Package: git\nStatus: install ok installed\nVersion: 1:2.47\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    assert find_python(root) == "3.13"
    assert find_suite(root) == "trixie"
    assert find_packages(root) == {"apt": {"git": "1:2.47"}, "pip": {"numpy": "2.5.5"}}


def test_contents_of_an_empty_root_are_nothing(root: Path) -> None:
    assert (find_python(root), find_suite(root)) == ("", "")
    assert find_packages(root) == {"apt": {}, "pip": {}}
