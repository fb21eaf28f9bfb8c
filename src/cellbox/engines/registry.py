"""Finds an engine by name among the entry points `cellbox.engines`, so that third parties can bring their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

from cellbox.engines.base import Engine, EngineFactory
from cellbox.errors import EngineUnavailableError

GROUP = "cellbox.engines"


def engine_names() -> list[str]:
    """Engines that are installed, whether or not this host can run them."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load_engine(name: str, state: Path) -> Engine:
    """Make the engine of this name, not started yet, with its state under `state`.

    Raises:
        EngineUnavailableError: there is no such engine (the message lists what there is), or its package is broken.
    """
    return cast("EngineFactory", _factory(name))(state)


def prepare_process(name: str) -> None:
    """Give this process the rights that an engine needs, as far as it can get them; before it has a second thread.

    Raises `EngineUnavailableError` with what to change on the host.
    """
    step = getattr(_factory(name), "prepare_process", None)
    if step is not None:
        cast("Callable[[], object]", step)()


async def install_engine(name: str, state: Path, report: Callable[[str], None] = lambda _: None) -> str | None:
    """Get what an engine needs onto this machine, if it knows how; returns its version, `None` if it has no such step.

    `report` is told of each step, one line at a time. Raises `EngineUnavailableError`.
    """
    step = getattr(_factory(name), "install", None)
    if step is None:
        return None
    return await cast("Callable[[Path, Callable[[str], None]], Awaitable[str]]", step)(state, report)


def _factory(name: str) -> Any:
    found: list[EntryPoint] = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not found:
        there = ", ".join(engine_names()) or "none"
        raise EngineUnavailableError(f"there is no engine named {name!r}; installed: {there}")
    try:
        return found[0].load()
    except (ImportError, AttributeError) as error:
        raise EngineUnavailableError(f"engine {name!r} can't be loaded: {error}") from error
