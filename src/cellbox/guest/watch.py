"""Watching files: what changes at a path or below it, as events that are merged and never pile up without bound.

What the sandbox itself changes is told by the kernel (inotify). In an attached directory others may write too, of which
this kernel knows nothing: there the tree is looked at once a second.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from cellbox.guest.channel import Handler, Refusal, Stream
from cellbox.guest.failures import check_path, refusing
from cellbox.guest.inotify import Inotify
from cellbox.guest.pending import Pending
from cellbox.guest.polling import Polling
from cellbox.wire.messages import Done, FileChanges, Request, WatchFiles

_MERGE_SECONDS = 0.02
"""How long changes are collected before they are sent: a program that writes a file makes a dozen."""
_BATCH = 500
_MAX_WATCHES = 100
"""At once. Each keeps descriptors and up to 10,000 changes in PID 1."""


class Watches:
    """The watches of a sandbox."""

    def __init__(self) -> None:
        self._count = 0
        self._polled: Sequence[str] = ()

    def configure(self, polled: Sequence[str]) -> None:
        """Set the directories in which others than this sandbox may write."""
        self._polled = polled

    def handlers(self) -> dict[type[Request], Handler]:
        return {WatchFiles: self.watch}

    async def watch(self, stream: Stream, request: WatchFiles) -> Done:
        """Send changes until the caller has enough, or what is watched is gone."""
        path = check_path(request.path)
        if self._count >= _MAX_WATCHES:
            raise Refusal("invalid_request", f"{_MAX_WATCHES} watches are open already; end one first")
        self._count += 1
        pending = Pending()
        source: Inotify | Polling | None = None
        try:
            with refusing(path):
                real = os.path.realpath(path, strict=True)
                is_polled = any(real == top or real.startswith(f"{top.rstrip('/')}/") for top in self._polled)
                if is_polled:
                    source = await Polling.start(path, request.recursive, pending)
                else:
                    source = Inotify(path, request.recursive, pending)
            stream.on_cancel(pending.wake.set)
            await stream.emit(FileChanges(changes=[]))  # from now on nothing is missed
            await _relay(stream, pending)
        finally:
            self._count -= 1
            if source is not None:
                source.close()
        return Done()


async def _relay(stream: Stream, pending: Pending) -> None:
    while not stream.cancelled.is_set():
        await pending.wake.wait()
        await asyncio.sleep(_MERGE_SECONDS)
        pending.wake.clear()
        while (batch := pending.take(_BATCH)) and not stream.cancelled.is_set():
            await stream.emit(FileChanges(changes=batch))
        if pending.is_over:
            return
