"""A real engine, and a catalogue that has `base` without building it anew."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from cellbox.control.settings import default_data_dir
from cellbox.engines.base import Engine
from cellbox.engines.registry import install_engine, load_engine
from cellbox.templates.catalogue import Catalogue
from cellbox.templates.templates import Templates

SHARED = Path(os.environ.get("CELLBOX_TEMPLATES_DIR") or os.environ.get("CELLBOX_DATA_DIR") or default_data_dir())


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
async def engine() -> AsyncGenerator[Engine]:
    state = Path(tempfile.mkdtemp(prefix="cbx-"))
    await install_engine("gvisor", state)
    running = load_engine("gvisor", state)
    await running.start()
    yield running
    await running.aclose()
    shutil.rmtree(state)


@pytest.fixture(scope="session")
async def templates(engine: Engine) -> AsyncGenerator[Templates]:
    """Templates in a directory of their own, with the shared `base` in it by hard links: nothing writes to it."""
    async for _ in Templates(SHARED, engine).ensure("base"):
        pass
    base = Catalogue(SHARED / "templates").resolve("base")
    data = Path(tempfile.mkdtemp(prefix="cbx-templates-", dir=SHARED))
    catalogue = Catalogue(data / "templates")
    catalogue.root.mkdir()
    subprocess.run(["cp", "-al", base.directory, catalogue.directory(base.digest)], check=True)
    catalogue.point("base", base.label)
    yield Templates(data, engine)
    shutil.rmtree(data)
