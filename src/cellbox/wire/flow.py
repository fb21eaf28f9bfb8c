"""Credit-based flow control, one window per stream and direction.

A sender may send while its credit is positive, so a payload may overdraw it once; the receiver returns credit as the
bytes are taken off its hands. Buffers on both sides are bounded by the window plus one payload.
"""

from __future__ import annotations

import struct

WINDOW_BYTES = 1024 * 1024
"""Credit that a sender starts with. At 1 MiB a stream reaches full speed and a stalled reader costs little."""
RETURN_BYTES = WINDOW_BYTES // 4
"""A receiver returns credit in steps of this, so that CREDIT frames stay rare."""

CREDIT = struct.Struct("!I")


class SendCredit:
    """How much a sender may still send."""

    __slots__ = ("available",)

    def __init__(self) -> None:
        self.available = WINDOW_BYTES

    def spend(self, size: int) -> None:
        self.available -= size

    def refill(self, payload: bytes) -> None:
        """Take a CREDIT frame's payload. Raises `struct.error` when it is malformed."""
        self.available = min(self.available + CREDIT.unpack(payload)[0], WINDOW_BYTES)

    @property
    def is_open(self) -> bool:
        return self.available > 0


class ReceiveWindow:
    """How much a receiver has taken and not yet said so."""

    __slots__ = ("_held", "_taken")

    def __init__(self) -> None:
        self._taken = 0
        self._held = 0

    def receive(self, size: int) -> bool:
        """Count an arriving payload. False when the sender ignored its credit."""
        ignored = self._held >= WINDOW_BYTES
        self._held += size
        return not ignored

    def take(self, size: int) -> bytes | None:
        """Count bytes taken off our hands; return a CREDIT payload when it is time to say so."""
        self._taken += size
        if self._taken < RETURN_BYTES:
            return None
        payload = CREDIT.pack(self._taken)
        self._held -= self._taken
        self._taken = 0
        return payload
