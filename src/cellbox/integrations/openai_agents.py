"""OpenAI Agents SDK: the code tools as function tools. Needs `cellbox[openai-agents]`."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection
from typing import Any

from agents import FunctionTool, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext

from cellbox.integrations.answers import Limits, ToolAnswer
from cellbox.integrations.artifacts import ArtifactStore
from cellbox.integrations.binding import Binding, ToolSource
from cellbox.integrations.facts import Facts
from cellbox.integrations.tool_specs import ToolSpec


def code_tools(
    source: ToolSource | None = None,
    *,
    only: Collection[str] | None = None,
    find: Callable[[Any], ToolSource] | None = None,
    limits: Limits | None = None,
    facts: Facts | None = None,
) -> list[FunctionTool]:
    """The code tools for an `Agent`.

    Pass a session or an `AsyncSandbox`; or nothing, and give each run its own with `Runner.run(…, context=session)`.
    Agents that hand off to each other then share the conversation's sandbox. `view_image` among `only` lets a model
    that can see look at its charts.

    A failing cell is an answer like any other; a fault of the platform ends the run with its exception.

    Args:
        source: What all runs work on.
        only: Names of the tools, in place of the usual ones.
        find: Takes the run's context and returns the source; by default the context itself, or its `session`.
        limits: How much of each part of an answer the model is given.
        facts: What the descriptions say of the sandbox; by default what it really is.
    """
    binding = Binding(source, only=only, find=find, limits=limits, facts=facts)
    return [_function_tool(spec, binding) for spec in binding.specs()]


def _function_tool(spec: ToolSpec, binding: Binding) -> FunctionTool:
    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        tools = binding.tools(context.context)
        return _output(await tools.call(spec.name, arguments), tools.artifacts)

    return FunctionTool(
        name=spec.name,
        description=spec.description,
        params_json_schema=spec.parameters,
        on_invoke_tool=invoke,
        strict_json_schema=False,  # strict mode knows no optional arguments
    )


def _output(answer: ToolAnswer, artifacts: ArtifactStore) -> Any:
    """Text; and images only where the model asked to look at them."""
    images: list[ToolOutputImage] = []
    for artifact in answer.shown:
        found = artifacts.get(artifact.id)
        if found is not None:
            data = base64.b64encode(found[1]).decode()
            images.append(ToolOutputImage(image_url=f"data:{artifact.mime_type};base64,{data}"))
    return [ToolOutputText(text=answer.text), *images] if images else answer.text
