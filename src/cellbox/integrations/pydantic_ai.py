"""Pydantic AI: the code tools as a toolset, and a sandbox as an agent's workspace. Needs `cellbox[pydantic-ai]`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from pydantic_ai import BinaryContent, ModelRetry, RunContext, Tool, ToolReturn
from pydantic_ai.toolsets import FunctionToolset

from cellbox.integrations.answers import Limits
from cellbox.integrations.binding import Binding, ToolSource
from cellbox.integrations.facts import Facts
from cellbox.integrations.pydantic_ai_workspace import CellboxWorkspace, CellboxWorkspaceBackend
from cellbox.integrations.tool_specs import ToolSpec

__all__ = ["CellboxWorkspace", "CellboxWorkspaceBackend", "code_toolset", "ran"]


def code_toolset(
    source: ToolSource | None = None,
    *,
    only: Collection[str] | None = None,
    find: Callable[[Any], ToolSource] | None = None,
    max_retries: int = 5,
    limits: Limits | None = None,
    facts: Facts | None = None,
) -> FunctionToolset[Any]:
    """The code tools for an `Agent(toolsets=[…])`.

    Pass a session or an `AsyncSandbox`; or nothing, and give each run its own with `agent.run(…, deps=session)`.

    A failing cell is a `ModelRetry` with the traceback, so that the model corrects its code; after `max_retries` in a
    row the run ends. A fault of the platform ends the run with its exception. The structured answer is the tool
    return's `metadata`, which never reaches the model.

    Args:
        source: What all runs work on.
        only: Names of the tools, in place of the usual ones.
        find: Takes the run's deps and returns the source; by default the deps themselves, or their `session`.
        limits: How much of each part of an answer the model is given.
        facts: What the descriptions say of the sandbox; by default what it really is.
    """
    binding = Binding(source, only=only, find=find, limits=limits, facts=facts)
    return FunctionToolset([_tool(spec, binding) for spec in binding.specs()], max_retries=max_retries)


def _tool(spec: ToolSpec, binding: Binding) -> Tool[Any]:
    async def call(ctx: RunContext[Any], **arguments: Any) -> Any:
        tools = binding.tools(ctx.deps)
        answer = await tools.call(spec.name, arguments)
        if answer.is_error:
            raise ModelRetry(answer.text)
        shown = [found for artifact in answer.shown if (found := tools.artifacts.get(artifact.id)) is not None]
        images = [BinaryContent(data=content, media_type=artifact.mime_type) for artifact, content in shown]
        return ToolReturn(return_value=answer.text, content=images or None, metadata=answer.structured())

    return Tool.from_schema(call, spec.name, spec.description, spec.parameters, takes_ctx=True)


async def ran(source: ToolSource, code: str) -> bool:
    """Whether this code was run in the sandbox, without error, as its journal says.

    For an output validator: an answer that names the code behind its number can be held to it.
    """
    sandbox = await Binding(source).tools(None).session.sandbox()
    wanted = _lines(code)
    return any(
        cell.execution is not None and cell.execution.error is None and wanted == _lines(cell.code)
        for cell in (await sandbox.journal()).cells
    )


def _lines(code: str) -> list[str]:
    return [line.rstrip() for line in code.strip().splitlines()]
