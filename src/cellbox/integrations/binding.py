"""How an adapter comes to the tools of the conversation it is called for."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakKeyDictionary

from cellbox.client._async._sandbox import AsyncSandbox
from cellbox.integrations._async._sessions import AsyncSession, AsyncSessions
from cellbox.integrations._async._tools import AsyncSandboxTools
from cellbox.integrations.answers import Limits
from cellbox.integrations.facts import Facts
from cellbox.integrations.tool_specs import ToolSpec, tool_specs
from cellbox.protocol.sandboxes import DEFAULT_TEMPLATE

ToolSource = AsyncSandboxTools | AsyncSession | AsyncSandbox
"""What tools can work on."""


class Binding:
    """The tools of one agent: bound to one conversation, or found anew in what each run brings along.

    Args:
        source: Tools, a session or a sandbox. None: it is found in each run's own object.
        only: Names of the tools, in place of the usual ones.
        find: Takes a run's own object and returns the source; by default the object itself, or its `session`.
        facts: What the descriptions say; by default what the daemon says of the source or of the default template.
    """

    def __init__(
        self,
        source: ToolSource | None,
        *,
        only: Collection[str] | None = None,
        find: Callable[[Any], ToolSource] | None = None,
        limits: Limits | None = None,
        facts: Facts | None = None,
    ) -> None:
        self._only = only
        self._find = find or find_source
        self._limits = limits
        self._facts = facts
        self._bound = self._make(source) if source is not None else None
        self._made: WeakKeyDictionary[Any, AsyncSandboxTools] = WeakKeyDictionary()

    def specs(self) -> list[ToolSpec]:
        """The tools to offer. The daemon may be asked what the sandbox holds, which blocks for milliseconds."""
        if self._bound is not None:
            return self._bound.specs(self._only)
        facts = self._facts or Facts.of_template(Facts.look_up(DEFAULT_TEMPLATE))
        return tool_specs(facts, self._limits, self._only)

    def tools(self, run_object: Any) -> AsyncSandboxTools:
        """The tools for a run.

        Raises:
            TypeError: They are not bound, and the run brought nothing that they can work on.
        """
        if self._bound is not None:
            return self._bound
        source = self._find(run_object)
        made = self._made.get(source)
        if made is None:
            made = self._made[source] = self._make(source)
        return made

    def _make(self, source: ToolSource) -> AsyncSandboxTools:
        if isinstance(source, AsyncSandboxTools):
            return source
        return AsyncSandboxTools(source, limits=self._limits, facts=self._facts)


def find_source(run_object: Any) -> ToolSource:
    """The object itself if tools can work on it, else its attribute `session` or `sandbox`.

    Raises:
        TypeError: It is neither.
    """
    for candidate in (run_object, getattr(run_object, "session", None), getattr(run_object, "sandbox", None)):
        if isinstance(candidate, ToolSource):
            return candidate
        if isinstance(candidate, AsyncSessions):
            raise TypeError("This is a registry: pass one conversation's session, sessions.session(KEY)")
    raise TypeError(
        f"The tools need a session or an AsyncSandbox, or an object with one as `session`, not "
        f"{type(run_object).__name__}: pass it to the factory of the tools, or bring it along with the run"
    )
