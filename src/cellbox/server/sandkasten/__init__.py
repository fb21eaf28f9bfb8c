"""Sandkasten's wire on the same port: sessions and workspaces, so that its published client works unchanged.

A session is a sandbox with one shell; a workspace is a workspace. Nothing is decided here: requests are put into the
words of `control`, and its answers and errors into those of this wire. Where the reference breaks what it promises,
the promise is kept: the shell's state persists, streams stream, a time limit ends the command, binary files survive.
"""

from __future__ import annotations

from cellbox.server.sandkasten import commands, files, sessions, workspaces

MODULES = (sessions, commands, files, workspaces)
"""Those with handlers."""
