"""Saved images: whole or not at all, and none is used that was changed, moved or made elsewhere."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cellbox.control.images import Images, Manifest, manifest_of
from cellbox.engines.base import EngineFault, MachineSpec
from cellbox.errors import SnapshotUnusableError, StorageFullError

KEY = "engine-1"
SPEC = MachineSpec(
    machine_id="m1", rootfs=Path("/r"), argv=("guest",), env={"A": "1"}, memory_mb=64, disk_mb=32, cpu=0.5, tasks=16
)


def manifest(image_id: str) -> Manifest:
    return manifest_of(SPEC, image_id=image_id, owner="ada", template="t", template_digest="d", image_key=KEY)


async def take(image: Path) -> None:
    (image / "pages.img").write_bytes(b"memory" * 1000)
    (image / "state.img").write_bytes(b"state")


async def opened(folder: Path) -> Images:
    images = Images(folder / "images", folder / "seal")
    await images.start({"one", "two"})
    return images


@pytest.fixture
async def images(tmp_path: Path) -> Images:
    images = await opened(tmp_path)
    await images.save(manifest("one"), take)
    return images


async def test_what_was_saved_can_be_used_by_the_next_daemon(images: Images, tmp_path: Path) -> None:
    for these in (images, await opened(tmp_path)):
        image = await these.open("one", image_key=KEY)
        assert (image.path / "state.img").read_bytes() == b"state"
        assert image.manifest.spec("m2", SPEC.rootfs).env == SPEC.env
        assert image.manifest.size_bytes == 6005
    modes = [path.stat() for path in (tmp_path / "images", tmp_path / "images/one", tmp_path / "seal")]
    assert all(not stat.S_IMODE(one.st_mode) & 0o077 for one in modes)


@pytest.mark.parametrize("part", ["image/pages.img", "image/state.img", "manifest.json", "seal"])
async def test_a_changed_bit_anywhere_is_noticed(images: Images, tmp_path: Path, part: str) -> None:
    path = tmp_path / "images/one" / part
    content = bytearray(path.read_bytes())
    times = path.stat()
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # who can write there can also hide when
    for these in (images, await opened(tmp_path)):
        with pytest.raises(SnapshotUnusableError) as caught:
            await these.open("one", image_key=KEY)
        assert caught.value.details == {"cause": "damaged"}


async def test_a_missing_part_and_a_missing_image_are_noticed(images: Images, tmp_path: Path) -> None:
    (tmp_path / "images/one/image/pages.img").unlink()
    for name in ("one", "none"):
        with pytest.raises(SnapshotUnusableError, match="read"):
            await images.open(name, image_key=KEY)


async def test_an_image_is_no_other_ones(images: Images, tmp_path: Path) -> None:
    (tmp_path / "images/one").rename(tmp_path / "images/two")
    with pytest.raises(SnapshotUnusableError, match="another"):
        await images.open("two", image_key=KEY)


async def test_an_image_of_another_engine_or_installation_is_refused(images: Images, tmp_path: Path) -> None:
    with pytest.raises(SnapshotUnusableError) as caught:
        await images.open("one", image_key="engine-2")
    assert caught.value.details == {"cause": "foreign"}
    (tmp_path / "seal").unlink()
    with pytest.raises(SnapshotUnusableError, match="seal"):
        await (await opened(tmp_path)).open("one", image_key=KEY)


async def test_a_save_that_fails_leaves_nothing(images: Images, tmp_path: Path) -> None:
    async def fail(image: Path) -> None:
        await take(image)
        raise EngineFault("no")

    async def fill(_image: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(EngineFault):
        await images.save(manifest("two"), fail)
    with pytest.raises(StorageFullError):
        await images.save(manifest("two"), fill)
    with pytest.raises(StorageFullError, match="MiB left"):
        images.check_space(1 << 60)
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["one"]


async def test_leftovers_of_a_crash_and_images_without_a_row_are_swept(images: Images, tmp_path: Path) -> None:
    (tmp_path / "images/.half/image").mkdir(parents=True)
    await images.save(manifest("unknown"), take)
    await opened(tmp_path)
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["one"]
    await images.remove("one")
    await images.remove("one")
    assert list((tmp_path / "images").iterdir()) == []
