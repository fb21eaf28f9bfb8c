"""A few threads for short calls into the kernel that may wait for its locks, apart from everyone else's work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_POOL = ThreadPoolExecutor(4, "cellbox-cgroups")
"""Not asyncio's default pool: a kill must not queue behind somebody's long copy. Its threads start on first use."""


def in_background(function: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Run a short blocking call that nobody waits for and that can't fail."""
    _POOL.submit(function, *args, **kwargs)


async def in_thread(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run a short blocking call; costs about 0.1 ms."""
    return await asyncio.get_running_loop().run_in_executor(_POOL, lambda: function(*args, **kwargs))
