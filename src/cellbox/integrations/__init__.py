"""Code tools for agent frameworks: one tool core, and a thin module for each framework over it.

`SandboxTools` and `AsyncSandboxTools` are the tools; `Sessions` and `AsyncSessions` keep one sandbox for each
conversation. The modules beside this one, such as `cellbox.integrations.openai_agents`, give them the shape of one
framework each; none of them is imported before it is asked for, and no framework is a dependency of Cellbox.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellbox.integrations._async._sessions import AsyncSession, AsyncSessions
    from cellbox.integrations._async._tools import AsyncSandboxTools
    from cellbox.integrations._sync._sessions import Session, Sessions
    from cellbox.integrations._sync._tools import SandboxTools
    from cellbox.integrations.answers import Limits, ToolAnswer
    from cellbox.integrations.artifacts import Artifact, ArtifactStore
    from cellbox.integrations.facts import Facts
    from cellbox.integrations.session_store import SessionRecord, SessionStore, SqliteSessionStore
    from cellbox.integrations.tool_specs import ToolSpec

__all__ = [
    "Artifact",
    "ArtifactStore",
    "AsyncSandboxTools",
    "AsyncSession",
    "AsyncSessions",
    "Facts",
    "Limits",
    "SandboxTools",
    "Session",
    "SessionRecord",
    "SessionStore",
    "Sessions",
    "SqliteSessionStore",
    "ToolAnswer",
    "ToolSpec",
]

_HOMES = {
    "_async._sessions": "AsyncSession AsyncSessions",
    "_async._tools": "AsyncSandboxTools",
    "_sync._sessions": "Session Sessions",
    "_sync._tools": "SandboxTools",
    "answers": "Limits ToolAnswer",
    "artifacts": "Artifact ArtifactStore",
    "facts": "Facts",
    "session_store": "SessionRecord SessionStore SqliteSessionStore",
    "tool_specs": "ToolSpec",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'cellbox.integrations' has no attribute {name!r}")
    value = getattr(import_module(f"cellbox.integrations.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
