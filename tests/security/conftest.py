"""The same clients and sandboxes as the end-to-end tests have."""

from __future__ import annotations

from ..e2e.conftest import Daemon, client, new_sandbox, sandbox, traces_of

__all__ = ["Daemon", "client", "new_sandbox", "sandbox", "traces_of"]
