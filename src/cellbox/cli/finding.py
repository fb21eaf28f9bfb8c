"""Finds the sandbox that a user means by an id or the beginning of one."""

from __future__ import annotations

from cellbox import Client, Sandbox
from cellbox.cli.exits import UsageError
from cellbox.errors import SandboxNotFoundError

_WHOLE_ID = 36


def open_sandbox(client: Client, name: str) -> Sandbox:
    """The one sandbox whose id is or begins with `name`.

    Raises:
        SandboxNotFoundError: There is none.
        UsageError: There are several.
    """
    if len(name) >= _WHOLE_ID:
        return client.sandboxes.get(name)
    found = [sandbox for sandbox in client.sandboxes.list() if name and sandbox.id.startswith(name)]
    if not found:
        raise SandboxNotFoundError(f"No sandbox of yours has an id that begins with {name!r}.")
    if len(found) > 1:
        raise UsageError(f"{len(found)} sandboxes have an id that begins with {name!r}; give more of it.")
    return found[0]
