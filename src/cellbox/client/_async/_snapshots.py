"""The collection of snapshots."""

from __future__ import annotations

from cellbox.client._async._connection import AsyncConnection
from cellbox.client._codec import Query
from cellbox.protocol import operations
from cellbox.protocol.snapshots import SnapshotInfo


class AsyncSnapshots:
    """The caller's snapshots at one daemon. `AsyncSandbox.snapshot` takes one, `create(from_snapshot=…)` uses it."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self, sandbox_id: str | None = None) -> list[SnapshotInfo]:
        """All of them, newest first; those of one sandbox, which may be gone, if it is named."""
        query: Query = [("sandbox_id", sandbox_id)]
        return (await self._connection.call(operations.list_snapshots, query=query)).snapshots

    async def get(self, snapshot_id: str) -> SnapshotInfo:
        """Find one by its id.

        Raises:
            SnapshotNotFoundError: There is none, or it is someone else's.
        """
        return await self._connection.call(operations.get_snapshot, ids={"snapshot_id": snapshot_id})

    async def delete(self, snapshot_id: str) -> None:
        """Delete one; sandboxes made from it live on.

        Raises:
            SnapshotNotFoundError: There is none, or it is someone else's.
        """
        await self._connection.call(operations.delete_snapshot, ids={"snapshot_id": snapshot_id})
