"""The handlers, one module per resource. Each decodes nothing and decides nothing: it calls `control`."""

from __future__ import annotations

from cellbox.server import sandkasten
from cellbox.server.routes import (
    account,
    commands,
    contexts,
    files,
    pool,
    sandboxes,
    shells,
    snapshots,
    system,
    templates,
    workspaces,
)
from cellbox.server.routing import Route


def all_routes() -> list[Route]:
    """Every route of the server."""
    modules = (
        sandboxes,
        snapshots,
        commands,
        shells,
        contexts,
        files,
        workspaces,
        templates,
        pool,
        account,
        system,
        *sandkasten.MODULES,
    )
    return [route for module in modules for route in module.handlers.routes]
