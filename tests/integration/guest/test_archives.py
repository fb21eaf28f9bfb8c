"""Archives: everything that a file can be goes there and back, and a hostile one changes nothing outside."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cellbox.wire.messages import Pack, ReadFile, Unpack

if TYPE_CHECKING:
    from .conftest import HostEnd


@pytest.fixture(scope="module")
def guest(shared_guest: HostEnd) -> HostEnd:
    return shared_guest


LONG = "deep/" + "d" * 120 + "/" + "f" * 120
NAMES = ["plain.txt", "報告 2024.csv", "new\nline", "-lead", ".dot", LONG]


def make_tree(top: Path) -> dict[str, bytes]:
    contents = {name: os.urandom(1 + 511 * index) for index, name in enumerate(NAMES)}
    contents["big"] = os.urandom(700_001)
    for name, content in contents.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(content)
    (top / "plain.txt").chmod(0o750)
    os.utime(top / "plain.txt", (1_600_000_000, 1_600_000_000))
    (top / "empty").mkdir(mode=0o700)
    (top / "link").symlink_to("plain.txt")
    return contents


@pytest.mark.parametrize("archive_format", ["tar", "tar.gz", "zip"])
def test_a_tree_goes_there_and_back(guest: HostEnd, tmp_path: Path, archive_format: str) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    contents = make_tree(source)
    packed = guest.do(Pack(path=str(source), format=archive_format))
    assert (packed.outcome["type"], packed.outcome["problems"]) == ("packed", [])
    unpacked = guest.do(Unpack(path=str(target)), packed.content).outcome
    assert (unpacked["type"], unpacked["problems"]) == ("unpacked", [])
    assert (unpacked["entries"], unpacked["size"]) == (packed.outcome["entries"], sum(map(len, contents.values())))
    assert {name: (target / name).read_bytes() for name in contents} == contents
    assert (target / "plain.txt").stat().st_mode & 0o777 == 0o750
    assert (target / "plain.txt").stat().st_mtime == 1_600_000_000
    assert (target / "empty").stat().st_mode & 0o777 == 0o700
    assert os.readlink(target / "link") == "plain.txt"


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_what_others_packed_is_unpacked(guest: HostEnd, tmp_path: Path, tar_format: int, mode: str) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    contents = make_tree(source)
    if tar_format == tarfile.USTAR_FORMAT:
        contents.pop(LONG)
        (source / LONG).unlink()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=tar_format) as archive:  # pyright: ignore[reportCallIssue, reportArgumentType]
        archive.add(source, ".")
        hard = tarfile.TarInfo("hard")
        hard.type, hard.linkname = tarfile.LNKTYPE, "big"
        archive.addfile(hard)
    assert guest.do(Unpack(path=str(target)), buffer.getvalue()).outcome["type"] == "unpacked"
    assert {name: (target / name).read_bytes() for name in contents} == contents
    assert (target / "hard").stat().st_ino == (target / "big").stat().st_ino


def test_what_we_packed_is_read_by_others(guest: HostEnd, tmp_path: Path) -> None:
    contents = make_tree(tmp_path)
    odd = os.fsdecode(b"bad\xff\xfename")
    (tmp_path / odd).write_text("x")
    tar = guest.do(Pack(path=str(tmp_path))).content
    with tarfile.open(fileobj=io.BytesIO(tar), errors="surrogateescape") as archive:
        for name, content in contents.items():
            member = archive.extractfile(name)
            assert member is not None
            assert member.read() == content
        assert odd in archive.getnames()
    done = guest.do(Pack(path=str(tmp_path), format="zip"))
    with zipfile.ZipFile(io.BytesIO(done.content)) as zipped:
        assert zipped.testzip() is None
        assert zipped.read("big") == contents["big"]
    assert len(done.outcome["problems"]) == 1
    assert "UTF-8" in done.outcome["problems"][0]


def member(name: str, content: bytes = b"", **fields: object) -> Callable[[tarfile.TarFile], None]:
    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        for field, value in fields.items():
            setattr(info, field, value)
        archive.addfile(info, io.BytesIO(content))

    return add


def tar_of(*members: Callable[[tarfile.TarFile], None]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for add in members:
            add(archive)
    return buffer.getvalue()


HOSTILE = {
    "up": tar_of(member("../evil", b"x")),
    "up within": tar_of(member("a/../../evil", b"x")),
    "through a link": tar_of(member("out", type=tarfile.SYMTYPE, linkname=".."), member("out/evil", b"x")),
    "hard link out": tar_of(member("evil", type=tarfile.LNKTYPE, linkname="../canary"), member("evil", b"x")),
    "hard link through a link": tar_of(
        member("out", type=tarfile.SYMTYPE, linkname=".."), member("h", type=tarfile.LNKTYPE, linkname="out/canary")
    ),
    "directory through a link": tar_of(
        member("out", type=tarfile.SYMTYPE, linkname=".."), member("out", type=tarfile.DIRTYPE, mode=0o777),
        member("out/evil", b"x"),
    ),
    "cut off": tar_of(member("a", b"x" * 5000))[:3000],
    "no archive": b"hello" * 1000,
    "gzip of nonsense": gzip.compress(b"hello" * 1000),
    "cut off gzip": gzip.compress(tar_of(member("a", os.urandom(5000))))[:3000],
    "negative size": tar_of(member("a")).replace(b"00000000000\x00", b"-0000000001\x00", 1),
    "empty": b"",
    "a zip of rubbish": b"PK\x03\x04" + b"\0" * 500,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_reaches_nothing_outside(guest: HostEnd, tmp_path: Path, name: str) -> None:
    (tmp_path / "canary").write_text("untouched")
    outcome = guest.do(Unpack(path=str(tmp_path / "target")), HOSTILE[name]).outcome
    assert outcome["type"] == ("unpacked" if name == "empty" else "failure"), outcome
    assert outcome.get("code") in (None, "invalid_request", "path_conflict")
    assert sorted(os.listdir(tmp_path)) == ["canary", "target"]
    assert (tmp_path / "canary").read_text() == "untouched"


def test_absolute_names_stay_inside_and_links_lead_where_they_say(guest: HostEnd, tmp_path: Path) -> None:
    archive = tar_of(
        member("/etc/shadow", b"mine"),
        member("link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("link", b"replaced"),
        member("setuid", b"", mode=0o4755),
        member("fifo", type=tarfile.FIFOTYPE),
        member("device", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    )
    outcome = guest.do(Unpack(path=str(tmp_path)), archive).outcome
    assert outcome["entries"] == 4
    assert len(outcome["problems"]) == 2
    assert (tmp_path / "etc/shadow").read_text() == "mine"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "setuid").stat().st_mode & 0o7777 == 0o755
    assert not (tmp_path / "fifo").exists()


def test_a_zip_that_leads_out_is_refused(guest: HostEnd, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("fine", "x")
        archive.writestr("../evil", "x")
    outcome = guest.do(Unpack(path=str(tmp_path / "target")), buffer.getvalue()).outcome
    assert outcome["code"] == "invalid_request"
    assert os.listdir(tmp_path) == ["target"]
    assert os.listdir(tmp_path / "target") == ["fine"]


def test_a_bomb_is_inflated_in_steps(guest: HostEnd, tmp_path: Path) -> None:
    """The disk bounds what comes out; here the limit is the header's word, and memory stays flat meanwhile."""
    size = 64 << 20
    header = tarfile.TarInfo("zeros")
    header.size = size
    bomb = gzip.compress(header.tobuf() + bytes(size) + bytes(1024), 9)
    assert len(bomb) < size / 900
    before = memory_kb(guest)
    assert guest.do(Unpack(path=str(tmp_path)), bomb).outcome["size"] == size
    assert memory_kb(guest) - before < 8 * 1024
    assert (tmp_path / "zeros").stat().st_size == size


def memory_kb(guest: HostEnd) -> int:
    """The most that the guest has ever taken."""
    status = Path(f"/proc/{guest.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def test_what_is_in_the_way_is_a_conflict_or_replaced(guest: HostEnd, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/kept").write_text("x")
    (tmp_path / "old").write_text("old")
    assert guest.do(Unpack(path=str(tmp_path)), tar_of(member("old", b"new"))).outcome["type"] == "unpacked"
    assert guest.do(ReadFile(path=str(tmp_path / "old"))).content == b"new"
    assert guest.do(Unpack(path=str(tmp_path)), tar_of(member("there", b"x"))).outcome["code"] == "path_conflict"
    assert guest.do(Unpack(path=str(tmp_path / "old")), tar_of(member("a", b"x"))).outcome["code"] == "path_conflict"
    assert (tmp_path / "there/kept").exists()
    assert guest.do(Pack(path=str(tmp_path / "nothing"))).outcome["code"] == "path_not_found"
    assert guest.do(Pack(path=str(tmp_path), format="rar")).outcome["code"] == "invalid_request"
