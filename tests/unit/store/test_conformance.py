"""What every store must hold to. A new store joins by an entry in `STORES`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cellbox.errors import StoreUnavailableError
from cellbox.store.base import KeyRow, SandboxRow, SnapshotRow, Store, WorkspaceRow
from cellbox.store.sqlite import SqliteStore

OpenStore = Callable[[], Store]
STORES: dict[str, Callable[[Path], Store]] = {"sqlite": lambda folder: SqliteStore(folder / "cellbox.db")}

SANDBOX = SandboxRow(
    id="6d8c8a52-5a3c-4f4e-9f7b-0d9e1c2b3a4f",
    owner="ada",
    template="code-interpreter",
    template_digest="sha256:00",
    status="running",
    request=b'{"template":"code-interpreter"}',
    created_at=1000.5,
    expires_at=4600.5,
    metadata={"session": "s1", "name": "Zoë ☃"},
)
SNAPSHOT = SnapshotRow(
    id="0d9e1c2b-5a3c-4f4e-9f7b-6d8c8a523a4f",
    owner="ada",
    sandbox_id=SANDBOX.id,
    name="prepared ☃",
    template="code-interpreter",
    template_digest="sha256:00",
    size_bytes=1 << 40,
    sha256="ab" * 32,
    cpu=1.5,
    memory_mb=1024,
    disk_mb=2048,
    created_at=1000.5,
    expires_at=4600.5,
)
WORKSPACE = WorkspaceRow(id="w1", owner="ada", name="thesis", size_mb=512, created_at=3.5)
KEY = KeyRow(prefix="pds_00000001", digest=b"\x00\xff" * 16, owner="ada", label="laptop", is_admin=True, created_at=1.0)


@pytest.fixture(params=STORES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens the same store anew each time."""
    return lambda: STORES[request.param](tmp_path)


@pytest.fixture
async def store(open_store: OpenStore) -> AsyncIterator[Store]:
    store = open_store()
    await store.start()
    yield store
    await store.aclose()


async def test_a_name_is_one_workspace_of_its_owner(store: Store) -> None:
    other = replace(WORKSPACE, id="w2", owner="bob")
    assert await store.insert_workspace(WORKSPACE)
    assert not await store.insert_workspace(replace(WORKSPACE, id="w3"))
    assert await store.insert_workspace(other)
    assert await store.list_workspaces() == [WORKSPACE, other]
    await store.delete_workspace("w1")
    await store.delete_workspace("w1")
    assert await store.list_workspaces() == [other]


async def test_rows_survive_a_restart(open_store: OpenStore) -> None:
    first = open_store()
    await first.start()
    persistent = replace(
        SANDBOX, id="2", created_at=2000.0, expires_at=None, persistent=True, machine_id="m2", rest=b"{}"
    )
    await first.save_sandbox(SANDBOX)
    await first.save_sandbox(persistent)
    newer = replace(SNAPSHOT, id="s2", created_at=2000.0)
    for row in (SNAPSHOT, newer, replace(SNAPSHOT, id="s3")):
        await first.save_snapshot(row)
    await first.delete_snapshot("s3")
    await first.delete_snapshot("never there")
    assert await first.insert_key(KEY)
    identity = await first.installation_id()
    await first.aclose()

    second = open_store()
    await second.start()
    assert await second.list_sandboxes() == [persistent, SANDBOX]
    assert await second.list_snapshots() == [newer, SNAPSHOT]
    assert second.list_keys() == [KEY]
    assert await second.installation_id() == identity
    assert len(identity) == 16
    await second.aclose()


async def test_saving_again_replaces_the_row(store: Store) -> None:
    await store.save_sandbox(SANDBOX)
    await store.save_sandbox(replace(SANDBOX, status="stopping", metadata={}))
    assert await store.list_sandboxes() == [replace(SANDBOX, status="stopping", metadata={})]


async def test_deleting_is_idempotent(store: Store) -> None:
    await store.save_sandbox(SANDBOX)
    await store.delete_sandbox(SANDBOX.id)
    await store.delete_sandbox(SANDBOX.id)
    assert await store.list_sandboxes() == []


async def test_a_taken_key_prefix_is_refused_and_the_first_key_stays(store: Store) -> None:
    assert await store.insert_key(KEY)
    assert not await store.insert_key(replace(KEY, owner="eve"))
    assert store.list_keys() == [KEY]


async def test_a_deleted_key_is_gone(store: Store) -> None:
    await store.insert_key(KEY)
    assert await store.delete_key(KEY.prefix)
    assert not await store.delete_key(KEY.prefix)
    assert store.list_keys() == []


async def test_last_use_is_noted_for_known_keys_only(store: Store) -> None:
    await store.insert_key(KEY)
    await store.touch_keys({KEY.prefix: 99.0, "pds_ffffffff": 99.0})
    assert store.list_keys() == [replace(KEY, last_used_at=99.0)]


async def test_the_version_changes_with_writes_of_any_store(open_store: OpenStore, store: Store) -> None:
    before = store.version()
    assert store.version() == before
    await store.insert_key(KEY)
    after_own = store.version()
    assert after_own != before

    other = open_store()
    await other.start()
    await other.delete_key(KEY.prefix)
    await other.aclose()
    assert store.version() != after_own
    assert store.list_keys() == []


async def test_many_tasks_may_write_at_once(store: Store) -> None:
    await asyncio.gather(*(store.save_sandbox(replace(SANDBOX, id=str(number))) for number in range(100)))
    assert len(await store.list_sandboxes()) == 100


async def test_a_cancelled_write_leaves_the_store_usable(store: Store) -> None:
    task = asyncio.ensure_future(store.save_sandbox(SANDBOX))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.save_sandbox(replace(SANDBOX, id="2"))
    assert "2" in {row.id for row in await store.list_sandboxes()}


async def test_a_closed_store_says_so(open_store: OpenStore) -> None:
    store = open_store()
    await store.start()
    await store.aclose()
    await store.aclose()
    with pytest.raises(StoreUnavailableError, match="closed"):
        await store.save_sandbox(SANDBOX)
    with pytest.raises(StoreUnavailableError, match="closed"):
        store.list_keys()
