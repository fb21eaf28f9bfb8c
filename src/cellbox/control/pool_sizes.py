"""How many sandboxes are wanted ready, by configuration and by what was asked for lately."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from cellbox import errors
from cellbox.engines.base import MachineSpec
from cellbox.protocol.pool import PoolSize

DEMAND_SECONDS = 60.0
"""A create speaks for another of its kind for so long."""
_REMEMBERED = 1000
ANY_TEMPLATE = "*"
_ENTRY = re.compile(r"(\*|[A-Za-z0-9._-]{1,64})=(\d{1,3})(?:-(\d{1,3}))?")


def parse_sizes(entries: Iterable[str]) -> dict[str, PoolSize]:
    """Read the setting: `TEMPLATE=N` and `TEMPLATE=MIN-MAX`. Raises `ConfigurationError` that names the bad entry."""
    sizes: dict[str, PoolSize] = {}
    for entry in entries:
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise errors.ConfigurationError(f"pool: {entry[:80]!r} is no size: write TEMPLATE=N or TEMPLATE=MIN-MAX")
        name, least, most = match.groups()
        if int(most or least) < int(least):
            raise errors.ConfigurationError(f"pool: {entry!r} has its least over its most")
        sizes[name] = PoolSize(min=int(least), max=int(most or least))
    return sizes


def checked(name: str, size: PoolSize) -> PoolSize:
    """Raise `InvalidRequestError` for a size that can't be meant."""
    if size.max < size.min:
        raise errors.InvalidRequestError(f"the pool of {name[:64]!r} can't have min {size.min} over max {size.max}")
    return size


class Demand:
    """What was asked for lately."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, str, MachineSpec]] = deque(maxlen=_REMEMBERED)

    def note(self, template: str, shape: MachineSpec) -> None:
        """Somebody asked for a sandbox of this template and shape."""
        self._recent.append((time.monotonic(), template, shape))

    def latest(self, template: str) -> list[MachineSpec]:
        """The shapes asked for in the last minute, newest first."""
        since = time.monotonic() - DEMAND_SECONDS
        while self._recent and self._recent[0][0] < since:
            self._recent.popleft()
        return [shape for _, name, shape in reversed(self._recent) if name == template]


def wanted(size: PoolSize, default: MachineSpec, latest: list[MachineSpec]) -> list[MachineSpec]:
    """What should be ready: `size.min` of the default shape, and what is asked for, up to `size.max` in all."""
    missing, room = size.min, size.max - size.min
    kept: list[MachineSpec] = []
    for shape in latest:
        if shape == default and missing:
            missing -= 1
        elif shape.rootfs == default.rootfs and room:
            room -= 1
        else:
            continue
        kept.append(shape)
    return [*kept, *[default] * missing]


def size_of(template: str, sizes: Mapping[str, PoolSize], of_recipe: int) -> PoolSize:
    """What holds for a template: its own setting, then its recipe's, then that for any template."""
    if template in sizes:
        return sizes[template]
    if of_recipe:
        return PoolSize(min=of_recipe, max=of_recipe)
    return sizes.get(ANY_TEMPLATE, PoolSize(min=0, max=0))


def shape_of(spec: MachineSpec) -> MachineSpec:
    """What two machines have in common that can stand in for each other."""
    return replace(spec, machine_id="", env=dict(spec.env))
