"""Forks: sandboxes that go on from another's present memory and disk, and trees of them to try things in.

The parent is saved once, and each child is restored from that image, which is then removed. A tree is all or nothing.
Children live no longer than was meant for them: a tree's child ends with what its parent had left at the latest, or
after `explore_ttl`, until it is promoted.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from datetime import UTC, datetime

from cellbox import errors
from cellbox.control.images import Images, save_failed
from cellbox.control.sandbox import LiveSandbox, check_metadata
from cellbox.control.sandboxes import Sandboxes
from cellbox.engines.base import EngineFault
from cellbox.protocol.sandboxes import SandboxStatus, UpdateMetadata
from cellbox.protocol.snapshots import (
    ForkResult,
    ForkSandbox,
    ForkTree,
    ForkTreeResult,
    PromoteChild,
    Promotion,
)

_PARENT, _TREE, _ROLE, _INDEX, _EXPLORE_TTL = (
    "fork_parent_id", "fork_tree_id", "fork_tree_role", "fork_index", "explore_ttl",
)  # fmt: skip
_RESERVED = frozenset({_PARENT, _TREE, _ROLE, _INDEX})


class Forks:
    """Makes children, and keeps the best of them."""

    def __init__(self, *, sandboxes: Sandboxes, images: Images) -> None:
        self._sandboxes = sandboxes
        self._images = images

    async def fork(self, parent: LiveSandbox, body: ForkSandbox) -> ForkResult:
        """Make `count` children, all or none."""
        _check(body.metadata)
        ttl_seconds = self._sandboxes.ttl_seconds(body.ttl_seconds, default=parent.clock.ttl_seconds)
        metadata = {**body.metadata, _PARENT: parent.id}
        children = await self._make(parent, [metadata] * body.count, ttl_seconds)
        return ForkResult(
            parent_id=parent.id,
            children=[child.id for child in children],
            sandbox=children[0].info(),
            at=datetime.now(UTC),
        )

    async def fork_tree(self, parent: LiveSandbox, body: ForkTree) -> ForkTreeResult:
        """Make a tree of `count` children, all or none."""
        _check(body.metadata)
        ttl_seconds = self._sandboxes.ttl_seconds(body.ttl_seconds, default=parent.clock.ttl_seconds)
        if (explore := body.metadata.get(_EXPLORE_TTL)) is not None:
            ttl_seconds = min(ttl_seconds, _seconds(explore))
        if not parent.persistent:
            ttl_seconds = min(ttl_seconds, max(parent.clock.remaining_seconds, 1.0))
        tree_id = str(uuid.uuid4())
        metadata = [
            {**body.metadata, _TREE: tree_id, _ROLE: "child", _PARENT: parent.id, _INDEX: str(index)}
            for index in range(body.count)
        ]
        children = await self._make(parent, metadata, ttl_seconds)
        return ForkTreeResult(
            tree_id=tree_id,
            parent_id=parent.id,
            children=[child.info() for child in children],
            at=datetime.now(UTC),
        )

    async def promote(self, owner: str, child: LiveSandbox, body: PromoteChild) -> Promotion:
        """Make a child a sandbox in its own right, with its parent's full TTL from now. Idempotent.

        Raises `InvalidRequestError` when it is of no tree, or of another than was named.
        """
        metadata = child.metadata
        tree_id = metadata.get(_TREE, "")
        if not tree_id:
            raise errors.InvalidRequestError(f"sandbox {child.id} is no child of a fork tree; make one with it")
        if body.tree_id not in (None, "", tree_id):
            raise errors.InvalidRequestError(f"sandbox {child.id} is of tree {tree_id}, not {body.tree_id!r:.80}")
        if metadata[_ROLE] != "winner":
            metadata.pop(_EXPLORE_TTL, None)
            metadata[_ROLE] = "winner"
            child.clock.set(self._sandboxes.ttl_seconds(child.request.ttl_seconds))
            await child.update_metadata(UpdateMetadata(metadata=metadata))
        deleted: list[str] = []
        failures: dict[str, str] = {}
        for sibling in self._sandboxes.list(owner) if body.cleanup_siblings else []:
            if sibling.metadata.get(_TREE) == tree_id and sibling.metadata.get(_ROLE) == "child":
                try:
                    await self._sandboxes.kill(owner, sibling.id)
                    deleted.append(sibling.id)
                except errors.APIError as error:
                    failures[sibling.id] = error.message
        return Promotion(winner=child.id, tree_id=tree_id, deleted=sorted(deleted), failures=failures)

    async def _make(self, parent: LiveSandbox, metadata: list[dict[str, str]], ttl_seconds: float) -> list[LiveSandbox]:
        if parent.status is SandboxStatus.HIBERNATED:
            await parent.guest.wake()
        if parent.status not in (SandboxStatus.RUNNING, SandboxStatus.PAUSED):
            raise parent.gone()
        parent.check_savable()
        arrived = time.monotonic()
        async with self._sandboxes.reserved(parent.owner, len(metadata)):
            self._images.check_space((await parent.usage()).host_rss_bytes)
            async with self._images.scratch() as image:
                try:
                    await parent.guest.save(image)
                except EngineFault as fault:
                    raise save_failed(fault) from fault
                making = [
                    asyncio.ensure_future(self._sandboxes.make_child(parent, image, one, ttl_seconds, arrived))
                    for one in metadata
                ]
                try:
                    return await asyncio.gather(*making)
                except BaseException:
                    await asyncio.shield(asyncio.ensure_future(self._undo(making)))
                    raise

    async def _undo(self, making: list[asyncio.Task[LiveSandbox]]) -> None:
        """One child failed, or the caller is gone: none of the others may stay."""
        for task in making:
            task.cancel()
        done = await asyncio.gather(*making, return_exceptions=True)
        made = [one for one in done if isinstance(one, LiveSandbox)]
        await asyncio.gather(*(self._sandboxes.kill(child.owner, child.id) for child in made), return_exceptions=True)


def _check(metadata: dict[str, str]) -> None:
    check_metadata({**metadata, **dict.fromkeys(_RESERVED, "")})  # there must be room for the fork's own
    if taken := sorted(_RESERVED & metadata.keys()):
        raise errors.InvalidRequestError(f"metadata {', '.join(taken)} is set by the fork itself: leave it out")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0 or math.isinf(seconds):
        raise errors.InvalidRequestError(f"metadata {_EXPLORE_TTL!r} must be a number of seconds, not {text[:40]!r}")
    return seconds
