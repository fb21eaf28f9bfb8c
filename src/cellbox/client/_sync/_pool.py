"""The pool of sandboxes that are ready before anyone asks."""

from __future__ import annotations

from collections.abc import Mapping

from cellbox.client._sync._connection import Connection
from cellbox.protocol import operations
from cellbox.protocol.pool import PoolSize, PoolStatus, ResizePool


class Pool:
    """What the daemon keeps ready, of all owners. Needs an admin key."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def status(self) -> PoolStatus:
        """What is ready and wanted, what it costs, and how it has served."""
        return self._connection.call(operations.get_pool)

    def resize(self, sizes: Mapping[str, int | tuple[int, int]]) -> PoolStatus:
        """Set how many sandboxes are kept ready. Replaces all sizes, until the daemon restarts; `{}` keeps none.

        Args:
            sizes: by template: a number, or (least, most) to have more while they are in demand. `"*"` stands for any
                template that is not named.

        Raises:
            InvalidRequestError: a size is out of bounds.
        """
        body = ResizePool(sizes={name: _size(size) for name, size in sizes.items()})
        return self._connection.call(operations.resize_pool, body)


def _size(size: int | tuple[int, int]) -> PoolSize:
    least, most = (size, size) if isinstance(size, int) else size
    return PoolSize(min=least, max=most)

# Generated from _async/_pool.py by tools/unasync.py: edit that, and run it again.
