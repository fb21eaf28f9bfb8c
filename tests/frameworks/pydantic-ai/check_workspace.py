"""Pydantic AI's conformance suite for workspace backends, as it is published."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from cellbox.integrations.pydantic_ai import CellboxWorkspace

CELLBOX = CellboxWorkspace(ttl_seconds=600)


@pytest.fixture(scope="module")
async def shared(anyio_backend: str) -> AsyncIterator[WorkspaceBackend]:
    backend = CELLBOX.backend()
    await backend.working_dir()
    yield backend
    assert backend.ref is not None
    await CELLBOX.destroy(backend.ref)


class TestWorkspaceBackend(WorkspaceBackendSuite):
    """One test is skipped: commands run as root in a sandbox, and root passes over permissions."""

    @pytest.fixture
    def backend(self, shared: WorkspaceBackend) -> WorkspaceBackend:
        return shared

    @pytest.fixture
    def fresh_backend(self) -> Callable[[], WorkspaceBackend]:
        return CELLBOX.backend

    @pytest.fixture
    def attach_backend(self) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return CELLBOX.backend

    @pytest.fixture
    def destroy_environment(self) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: WorkspaceBackend) -> None:
            assert backend.ref is not None
            await CELLBOX.destroy(backend.ref)

        return destroy
