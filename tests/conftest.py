"""Fixtures for all tests. What needs the real engine lies in `tests/e2e` and `tests/integration`."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
