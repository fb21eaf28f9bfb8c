"""A sandbox's time to live: counted on the monotonic clock, and standing still while it can't be used."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class LifeClock:
    """Counts down from `ttl_seconds`. A step of the wall clock must not kill anything, so it is never asked."""

    def __init__(self, ttl_seconds: float, *, remaining_seconds: float | None = None) -> None:
        """`remaining_seconds`: what a stopped one has left."""
        self.ttl_seconds = ttl_seconds
        self._remaining = remaining_seconds
        self._deadline = time.monotonic() + ttl_seconds

    @property
    def remaining_seconds(self) -> float:
        """Never negative."""
        left = self._remaining if self._remaining is not None else self._deadline - time.monotonic()
        return max(0.0, left)

    @property
    def is_up(self) -> bool:
        """True when the time is over; never while it stands still."""
        return self._remaining is None and time.monotonic() >= self._deadline

    def set(self, ttl_seconds: float) -> None:
        """Begin anew with so many seconds."""
        self.ttl_seconds = ttl_seconds
        self.prolong(ttl_seconds)

    def prolong(self, seconds: float) -> None:
        """Let so many seconds be left from now, or from when it goes on."""
        if self._remaining is not None:
            self._remaining = seconds
        else:
            self._deadline = time.monotonic() + seconds

    def stop(self) -> None:
        """Stand still. Idempotent."""
        if self._remaining is None:
            self._remaining = self.remaining_seconds

    def go_on(self) -> None:
        """Go on with what was left; with all of it when that was nothing. Idempotent."""
        if self._remaining is not None:
            self._deadline = time.monotonic() + (self._remaining or self.ttl_seconds)
            self._remaining = None

    def ends_at(self) -> datetime:
        """When the time is over, if it does not stand still till then."""
        return datetime.fromtimestamp(time.time() + self.remaining_seconds, UTC)
