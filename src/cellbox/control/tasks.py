"""Background tasks with an owner: none outlives the daemon, and a failing one is logged instead of lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

_log = structlog.stdlib.get_logger(__name__)


class Tasks:
    """A set of running tasks; `aclose` cancels what is left and waits for it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> None:
        task = asyncio.get_running_loop().create_task(_guarded(work, name), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def aclose(self) -> None:
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _guarded(work: Coroutine[Any, Any, Any], name: str) -> None:
    try:
        await work
    except Exception:
        _log.exception("background task failed", task=name)
