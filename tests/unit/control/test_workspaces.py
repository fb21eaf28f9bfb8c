"""Workspaces where the host can't mount images, and what must hold between calls that overlap."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellbox import errors
from cellbox.control import workspace_storage
from cellbox.control.settings import Settings
from cellbox.control.workspaces import Workspaces
from cellbox.protocol.sandboxes import CreateSandbox, VolumeMount
from cellbox.protocol.workspaces import CreateWorkspace
from cellbox.store.sqlite import SqliteStore


@pytest.fixture
async def workspaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workspaces]:
    """On a host without `mkfs.ext4`."""
    monkeypatch.setattr(workspace_storage, "_MKFS", ("no-such-program",))
    store = SqliteStore(tmp_path / "db")
    await store.start()
    settings = Settings(data_dir=tmp_path, workspace_mb=16, max_workspaces_per_owner=3)
    made = Workspaces(settings=settings, store=store)
    await made.start()
    yield made
    await made.aclose()
    await store.aclose()


async def mount(workspaces: Workspaces, owner: str, name: str, sandbox: str = "s1") -> Path:
    hold = await workspaces.hold(owner, sandbox, CreateSandbox(workspace=name))
    await hold.attach()
    await hold.release()
    return hold.attachments[0].source


async def test_without_images_content_is_kept_and_the_record_says_what_does_not_hold(workspaces: Workspaces) -> None:
    hold = await workspaces.hold("ada", "s1", CreateSandbox(workspace="w"))
    await hold.attach()
    assert hold.attached == {"/workspace": hold.attachments[0].name}
    assert workspaces.limitations(hold)
    (hold.attachments[0].source / "f").write_bytes(bytes(17 << 20))
    info = await workspaces.get("ada", "w")
    assert not info.is_enforced
    assert info.size_bytes >= 17 << 20
    assert info.sandboxes == ["s1"]
    await hold.release()
    with pytest.raises(errors.StorageFullError, match="remove something"):
        await mount(workspaces, "ada", "w", "s2")
    assert (await workspaces.get("ada", "w")).sandboxes == ["s2"]


async def test_deleting_follows_no_link(workspaces: Workspaces, tmp_path: Path) -> None:
    place = await mount(workspaces, "ada", "w")
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "kept").write_text("x")
    (place / "out").symlink_to(canary)
    (place / "deep").mkdir()
    os.link(canary / "kept", place / "deep/hard")
    await workspaces.delete("ada", "w")
    assert (canary / "kept").read_text() == "x"
    assert not place.parent.exists()


async def test_a_name_is_made_once_however_many_ask(workspaces: Workspaces) -> None:
    holds = await asyncio.gather(
        *(workspaces.hold("ada", f"s{number}", CreateSandbox(workspace="w")) for number in range(8))
    )
    assert len({next(iter(hold.attached.values())) for hold in holds}) == 1
    with pytest.raises(errors.WorkspaceInUseError):
        await workspaces.delete("ada", "w")
    for hold in holds:
        await hold.attach()
        await hold.release()
        await hold.release()
    await workspaces.delete("ada", "w")


async def test_what_is_deleted_between_hold_and_attach_is_gone(workspaces: Workspaces) -> None:
    await workspaces.create("ada", CreateWorkspace(name="w"))
    caretaker = workspaces.hold_one("ada", "caretaker\0ada", "w")
    ended: list[str] = []

    async def end(_owner: str, name: str) -> None:
        ended.append(name)
        await caretaker.release()

    workspaces.on_delete = end
    await workspaces.delete("ada", "w")
    assert ended == ["w"]
    with pytest.raises(errors.WorkspaceNotFoundError):
        await caretaker.attach()


async def test_quotas_and_sizes(workspaces: Workspaces) -> None:
    for name in "abc":
        await workspaces.create("ada", CreateWorkspace(name=name))
    with pytest.raises(errors.QuotaExceededError):
        await workspaces.create("ada", CreateWorkspace(name="d"))
    with pytest.raises(errors.InvalidRequestError, match="65536"):
        await workspaces.create("bob", CreateWorkspace(name="d", size_mb=65_537))
    assert [one.name for one in await workspaces.list("ada")] == ["a", "b", "c"]
    assert await workspaces.list("bob") == []
    with pytest.raises(errors.InvalidRequestError, match="14"):
        await workspaces.hold("ada", "s", CreateSandbox(volumes=[VolumeMount(name="a")] * 15))


async def test_what_a_crash_left_is_swept(workspaces: Workspaces, tmp_path: Path) -> None:
    kept = await mount(workspaces, "ada", "w")
    (tmp_path / "workspaces/0123/files/half").mkdir(parents=True)
    await workspaces.start()
    assert [path.name for path in (tmp_path / "workspaces").iterdir()] == [kept.parent.name]
