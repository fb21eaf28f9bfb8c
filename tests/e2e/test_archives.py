"""Archives and watches in a real sandbox: as its own user, on its own disk, with its own kernel's news of changes."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import cellbox
from cellbox import errors


@pytest.fixture(scope="module")
def box(client: cellbox.Client) -> Iterator[cellbox.Sandbox]:
    with cellbox.Sandbox.create("base", ttl_seconds=600, disk_mb=96, client=client) as shared:
        yield shared


def test_a_project_goes_in_and_comes_out(box: cellbox.Sandbox, tmp_path: Path) -> None:
    content = os.urandom(2_000_000)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, data in (("project/run.sh", b"#!/bin/sh\nwc -c < data.bin\n"), ("project/data.bin", content)):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
    archive.seek(0)
    done = box.filesystem.unpack(archive, "/workspace")
    assert (done.entries, done.bytes, done.problems) == (2, 2_000_027, [])
    assert box.exec("cd project && ./run.sh").stdout.strip() == "2000000"
    for archive_format in ("tar", "tar.gz", "zip"):
        local = tmp_path / f"out.{archive_format}"
        assert box.filesystem.pack("/workspace/project", local, archive_format=archive_format) == local.stat().st_size
        assert box.filesystem.unpack(local, f"/tmp/{archive_format}").entries == 2
        assert box.filesystem.read(f"/tmp/{archive_format}/data.bin") == content
        assert box.exec(f"stat -c %a /tmp/{archive_format}/run.sh").stdout == "755\n"
    with pytest.raises(errors.PathNotFoundError):
        box.filesystem.pack("/nothing", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(errors.InvalidRequestError):
        box.filesystem.unpack([b"no archive" * 100], "/tmp/none")


def test_what_is_unpacked_belongs_to_the_user_and_needs_its_rights(box: cellbox.Sandbox) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("mine"))
    box.filesystem.unpack([archive.getvalue()], "/tmp/of-nobody", user="nobody")
    assert box.exec("stat -c %U /tmp/of-nobody /tmp/of-nobody/mine").stdout == "nobody\nnobody\n"
    with pytest.raises(errors.PermissionDeniedError):
        box.filesystem.unpack([archive.getvalue()], "/root/x", user="nobody")


def test_a_bomb_fills_the_sandboxs_disk_and_no_more(box: cellbox.Sandbox) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        info = tarfile.TarInfo("zeros")
        info.size = 128 << 20
        with open("/dev/zero", "rb") as zeros:
            tar.addfile(info, zeros)
    assert len(archive.getvalue()) < 1 << 20
    with pytest.raises(errors.StorageFullError):
        box.filesystem.unpack([archive.getvalue()], "/tmp/bomb")
    box.filesystem.remove("/tmp/bomb", recursive=True)
    assert box.exec("echo alive > /tmp/alive && cat /tmp/alive").stdout == "alive\n"


def test_a_watch_tells_what_the_sandbox_changes(box: cellbox.Sandbox) -> None:
    told: list[tuple[str, str, str]] = []
    with box.filesystem.watch("/workspace", recursive=True) as watch:
        box.exec("mkdir -p a/b && echo x > a/b/c && mv a/b/c a/d && chmod 600 a/d && rm -r a && touch end")
        for change in watch:
            told.append((change.kind, change.path, change.target))
            if change.path == "/workspace/end":
                break
    assert ("created", "/workspace/a/b/c", "") in told
    assert ("moved", "/workspace/a/b/c", "/workspace/a/d") in told
    assert ("attributes", "/workspace/a/d", "") in told
    assert told[-2:] == [("removed", "/workspace/a", ""), ("created", "/workspace/end", "")]
    with pytest.raises(errors.PathNotFoundError), box.filesystem.watch("/nothing"):
        pass


def test_a_watch_ends_when_its_directory_goes(box: cellbox.Sandbox) -> None:
    box.exec("mkdir /tmp/short", check=True)
    with box.filesystem.watch("/tmp/short") as watch:
        box.exec("rmdir /tmp/short")
        assert [change.kind for change in watch] == ["removed"]


def test_a_large_directory_comes_in_pages(box: cellbox.Sandbox) -> None:
    box.exec("mkdir /tmp/many && cd /tmp/many && seq -f 'f%05g' 2500 | xargs touch", check=True)
    names = [entry.name for entry in box.filesystem.iter_directory("/tmp/many", page=1000)]
    assert names == [f"f{number:05}" for number in range(1, 2501)]
    assert [entry.name for entry in box.filesystem.iter_directory("/tmp/many", page=2500)] == names
    box.filesystem.remove("/tmp/many", recursive=True)


def test_modes_change_below_and_links_are_left(box: cellbox.Sandbox) -> None:
    box.exec("mkdir -p /tmp/m/n && touch /tmp/m/f /tmp/m/n/g /tmp/outside && ln -s /tmp/outside /tmp/m/l", check=True)
    assert box.filesystem.chmod("/tmp/m", 0o750, recursive=True).permissions == 0o750
    modes = box.exec("stat -c %a /tmp/m /tmp/m/f /tmp/m/n/g /tmp/outside").stdout.split()
    assert modes == ["750", "750", "750", "644"]
    with pytest.raises(errors.PathNotFoundError):
        box.filesystem.chmod("/tmp/nothing", 0o600)
