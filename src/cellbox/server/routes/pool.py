"""The pool of ready sandboxes."""

from __future__ import annotations

from cellbox.protocol import operations
from cellbox.protocol.pool import PoolStatus, ResizePool
from cellbox.server.call import Call
from cellbox.server.routing import Handlers

handlers = Handlers()


@handlers.handles(operations.get_pool)
async def get_pool(call: Call[None]) -> PoolStatus:
    return await call.control.sandboxes.pool.status()


@handlers.handles(operations.resize_pool)
async def resize_pool(call: Call[ResizePool]) -> PoolStatus:
    pool = call.control.sandboxes.pool
    pool.resize(call.body.sizes)
    return await pool.status()
