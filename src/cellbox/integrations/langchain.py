"""LangChain and LangGraph: the code tools as structured tools. Needs `cellbox[langchain]`."""

from __future__ import annotations

import base64
from collections.abc import Collection
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool

from cellbox.client._sync._sandbox import Sandbox
from cellbox.integrations._async._sessions import AsyncSessions
from cellbox.integrations._async._tools import AsyncSandboxTools
from cellbox.integrations._sync._sessions import Session, Sessions
from cellbox.integrations._sync._tools import SandboxTools
from cellbox.integrations.answers import Limits, ToolAnswer
from cellbox.integrations.artifacts import ArtifactStore
from cellbox.integrations.binding import ToolSource
from cellbox.integrations.facts import Facts
from cellbox.integrations.tool_specs import ToolSpec, tool_specs

AnySource = ToolSource | SandboxTools | Session | Sandbox | Sessions | AsyncSessions


def code_tools(
    source: AnySource,
    *,
    only: Collection[str] | None = None,
    limits: Limits | None = None,
    facts: Facts | None = None,
) -> list[StructuredTool]:
    """The code tools for `create_agent` or a `ToolNode`.

    With a registry (`Sessions` or `AsyncSessions`) each call works in the sandbox of its thread: the `thread_id` of the
    run's configuration is the key. An asynchronous source makes tools for `ainvoke`, a blocking one for both.

    A failing cell is an answer like any other; a fault of the platform leaves the graph as its exception. The tool
    message's `artifact` is the structured answer, which never reaches the model.

    Args:
        source: A registry; or one session or sandbox that all calls work on.
        only: Names of the tools, in place of the usual ones.
        limits: How much of each part of an answer the model is given.
        facts: What the descriptions say of the sandbox; by default what it really is.
    """
    tools = _Tools(source, limits, facts)
    return [_structured_tool(spec, tools) for spec in tools.specs(only)]


class _Tools:
    """Finds the tools of a thread."""

    def __init__(self, source: AnySource, limits: Limits | None, facts: Facts | None) -> None:
        self._limits = limits
        self._facts = facts
        self._sessions = source if isinstance(source, Sessions | AsyncSessions) else None
        self._bound = None if self._sessions is not None else self._make(source)
        self.is_async = isinstance(self._sessions or self._bound, AsyncSessions | AsyncSandboxTools)

    def specs(self, only: Collection[str] | None) -> list[ToolSpec]:
        if self._bound is not None:
            return self._bound.specs(only)
        assert self._sessions is not None
        return tool_specs(self._facts or self._sessions.facts(), self._limits, only)

    def of(self, config: RunnableConfig) -> Any:
        if self._bound is not None:
            return self._bound
        assert self._sessions is not None
        thread = config.get("configurable", {}).get("thread_id")
        if not thread:
            raise ValueError('The run has no thread: pass config={"configurable": {"thread_id": …}}')
        return self._make(self._sessions.session(str(thread)))

    def _make(self, source: Any) -> Any:
        if isinstance(source, SandboxTools | AsyncSandboxTools):
            return source
        kind = SandboxTools if isinstance(source, Session | Sandbox) else AsyncSandboxTools
        return kind(source, limits=self._limits, facts=self._facts)


def _structured_tool(spec: ToolSpec, found: _Tools) -> StructuredTool:
    def call(config: RunnableConfig, **arguments: Any) -> Any:
        tools = found.of(config)
        return _output(tools.call(spec.name, arguments), tools.artifacts)

    async def acall(config: RunnableConfig, **arguments: Any) -> Any:
        tools = found.of(config)
        return _output(await tools.call(spec.name, arguments), tools.artifacts)

    return StructuredTool(
        name=spec.name,
        description=spec.description,
        args_schema=spec.parameters,
        func=None if found.is_async else call,
        coroutine=acall if found.is_async else None,
        response_format="content_and_artifact",
    )


def _output(answer: ToolAnswer, artifacts: ArtifactStore) -> tuple[Any, dict[str, Any]]:
    """What the model gets, and what only the program gets."""
    content: list[dict[str, Any]] = [{"type": "text", "text": answer.text}]
    for artifact in answer.shown:
        found = artifacts.get(artifact.id)
        if found is not None:
            data = base64.b64encode(found[1]).decode()
            content.append({"type": "image", "base64": data, "mime_type": artifact.mime_type})
    return (content if len(content) > 1 else answer.text), answer.structured()
