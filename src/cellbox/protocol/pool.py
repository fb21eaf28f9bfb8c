"""Sandboxes that are ready before anyone asks for them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from cellbox.protocol.values import RequestBody, Value

MAX_POOL_SIZE = 500

_Count = Annotated[int, Meta(ge=0, le=MAX_POOL_SIZE)]


class PoolSize(RequestBody):
    """How many sandboxes of a template are kept ready."""

    min: _Count
    """So many always."""
    max: _Count
    """Up to so many while they are asked for: as many as there were creates in the last minute."""


class ResizePool(RequestBody):
    """Body of `resize_pool`: replaces all sizes until the daemon restarts."""

    sizes: dict[Annotated[str, Meta(pattern=r"^(\*|[A-Za-z0-9._-]{1,64})$")], PoolSize]
    """By template; `*` stands for any that is not named."""


class PoolEntry(Value):
    """The sandboxes of one template and shape that are ready, or wanted so."""

    template: str
    template_digest: str
    cpu: float
    memory_mb: int
    disk_mb: int
    ready: int
    wanted: int


class PoolStatus(Value):
    """What the pool holds and how it has served."""

    entries: list[PoolEntry]
    sizes: dict[str, PoolSize]
    """As configured; templates whose recipe sets a size of its own are not in it."""
    ready: int
    memory_bytes: int
    """Host memory that the ready ones use now."""
    hits: int
    """Creates that were served from the pool."""
    misses: int
    """Creates that the pool should have served and that found none ready."""
    unfit: int
    """Ready ones that did not answer when they were to be handed out; those who asked got another."""
    given_back: int
    """Ready ones that were removed because the host's memory ran short."""
    unknown: list[str] = []
    """Names in `sizes` that no built template has."""
    waits_for: str = ""
    """Why it is not being filled although some are wanted: `memory`, `room`, `quiet` or a fault."""
