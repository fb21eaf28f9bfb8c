"""The handlers, one module per resource. Each decodes nothing and decides nothing: it calls `control`."""

from __future__ import annotations

from cellbox.server.routes import (
    account,
    commands,
    contexts,
    files,
    sandboxes,
    snapshots,
    system,
    templates,
    workspaces,
)
from cellbox.server.routing import Route
from cellbox.server.sandkasten import commands as sandkasten_commands
from cellbox.server.sandkasten import files as sandkasten_files
from cellbox.server.sandkasten import sessions as sandkasten_sessions
from cellbox.server.sandkasten import workspaces as sandkasten_workspaces


def all_routes() -> list[Route]:
    """Every route of the server."""
    modules = (sandboxes, snapshots, commands, contexts, files, workspaces, templates, account, system)
    return [route for module in modules for route in module.handlers.routes]
