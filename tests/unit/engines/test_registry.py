"""Engines are found by name among the entry points."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cellbox.engines import registry
from cellbox.engines.base import Engine
from cellbox.errors import EngineUnavailableError


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = (
        EntryPoint("gvisor", "cellbox.engines.gvisor.engine:GvisorEngine", registry.GROUP),
        EntryPoint("broken", "cellbox.engines.no_such_module:Engine", registry.GROUP),
    )
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)


def test_an_engine_is_made_by_name(tmp_path: Path) -> None:
    engine = registry.load_engine("gvisor", tmp_path)
    assert isinstance(engine, Engine)
    assert engine.name == "gvisor"


def test_an_unknown_engine_lists_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailableError, match="installed: broken, gvisor"):
        registry.load_engine("docker", tmp_path)


def test_a_broken_package_is_an_unavailable_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailableError, match="can't be loaded"):
        registry.load_engine("broken", tmp_path)
