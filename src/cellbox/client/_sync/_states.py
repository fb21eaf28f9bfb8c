"""What can be done with a sandbox as a whole: let it rest, save it, fork it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec

from cellbox.client._sync._connection import Connection
from cellbox.client._timeouts import SAVE_SECONDS
from cellbox.protocol import operations
from cellbox.protocol.sandboxes import SandboxInfo, SandboxStatus
from cellbox.protocol.snapshots import ForkSandbox, ForkTree, PromoteChild, Promotion, SnapshotInfo, TakeSnapshot


class SandboxStates:
    """The part of `Sandbox` that moves it between states."""

    def __init__(self, connection: Connection, info: SandboxInfo) -> None:
        self._connection = connection
        self._info = info
        self._ids = {"sandbox_id": info.id}

    def refresh(self) -> Self:
        """Ask the daemon for the current `info`.

        Raises:
            SandboxNotFoundError: It is gone.
        """
        self._info = self._connection.call(operations.get_sandbox, ids=self._ids)
        return self

    def pause(self) -> None:
        """Stop it where it is: it uses no CPU, its memory stays, its TTL stands still. One that is paused is fine.

        Until `resume`, whatever is asked of it raises `SandboxNotRunningError`; what is in progress waits.
        """
        self._connection.call(operations.pause_sandbox, ids=self._ids)
        self._note(SandboxStatus.PAUSED)

    def resume(self) -> None:
        """Let it go on after `pause`. One that runs already is fine."""
        self._connection.call(operations.resume_sandbox, ids=self._ids)
        self._note(SandboxStatus.RUNNING)

    def hibernate(self) -> None:
        """Put it on disk: it uses no memory, its TTL stands still. Whatever is asked of it next wakes it up.

        What is in progress meanwhile ends for its caller with `SandboxNotRunningError`, and goes on after the wake.

        Raises:
            StorageFullError: The host's disk has no room. The sandbox goes on.
        """
        answer = self._connection.call(operations.hibernate_sandbox, timeout_seconds=SAVE_SECONDS, ids=self._ids)
        self._note(answer.status)

    def wake(self) -> None:
        """Bring it back from the disk, with everything as it was. One that runs already is fine.

        Raises:
            SnapshotUnusableError: Its image is damaged, or was made by another engine, processor or Cellbox.
        """
        answer = self._connection.call(operations.wake_sandbox, timeout_seconds=SAVE_SECONDS, ids=self._ids)
        self._note(answer.status)

    def snapshot(self, *, name: str = "", ttl_seconds: float | None = None) -> SnapshotInfo:
        """Save its memory, processes and disk, while it goes on. `create(from_snapshot=…)` goes on from there.

        Args:
            name: For people; need not be unique.
            ttl_seconds: After which the snapshot is deleted. Default 30 days.

        Raises:
            QuotaExceededError: The owner has as many snapshots as it may, or as many bytes of them.
            StorageFullError: The host's disk has no room.
        """
        body = TakeSnapshot(name=name, ttl_seconds=ttl_seconds)
        return self._connection.call(operations.take_snapshot, body, timeout_seconds=SAVE_SECONDS, ids=self._ids)

    def fork(self, *, metadata: Mapping[str, str] | None = None, ttl_seconds: float | None = None) -> Self:
        """Make a sandbox that goes on from this one's present memory and disk. This one goes on too.

        Args:
            metadata: Labels of the child, which also gets `fork_parent_id`.
            ttl_seconds: Its life from now. Default: as long as this one was given.

        Raises:
            CapacityError: There is no room for another sandbox. Nothing was created.
            QuotaExceededError: The owner has as many sandboxes as it may.
        """
        body = ForkSandbox(metadata=dict(metadata or {}), ttl_seconds=ttl_seconds)
        answer = self._connection.call(operations.fork_sandbox, body, timeout_seconds=SAVE_SECONDS, ids=self._ids)
        return type(self)(self._connection, answer.sandbox)

    def fork_tree(
        self, count: int, *, metadata: Mapping[str, str] | None = None, ttl_seconds: float | None = None
    ) -> list[Self]:
        """Fork several children at once to try things in, all of them or none. Keep the best with `promote`.

        Args:
            count: How many, at most 16.
            metadata: Labels of the children. `explore_ttl` holds the seconds after which one ends unless promoted.
            ttl_seconds: Their life from now, never longer than what this one has left.

        Raises:
            CapacityError: There is no room for all of them. Nothing was created.
            QuotaExceededError: The owner may not have so many sandboxes.
        """
        body = ForkTree(count=count, metadata=dict(metadata or {}), ttl_seconds=ttl_seconds)
        answer = self._connection.call(operations.fork_tree, body, timeout_seconds=SAVE_SECONDS, ids=self._ids)
        return [type(self)(self._connection, info) for info in answer.children]

    def promote(self, *, cleanup_siblings: bool = False) -> Promotion:
        """Make this child of a fork tree a sandbox in its own right, with its parent's full TTL from now.

        Args:
            cleanup_siblings: Kill the tree's other children that were not promoted.

        Raises:
            InvalidRequestError: It is no child of a tree.
        """
        body = PromoteChild(cleanup_siblings=cleanup_siblings)
        answer = self._connection.call(operations.promote_sandbox, body, ids=self._ids)
        self.refresh()
        return answer

    def _note(self, status: SandboxStatus) -> None:
        self._info = msgspec.structs.replace(self._info, status=status)

# Generated from _async/_states.py by tools/unasync.py: edit that, and run it again.
