"""A data analyst: answers questions about a CSV file with code and charts. OpenAI Agents SDK.

    pip install 'cellbox[openai-agents]'
    python examples/data_analyst.py sales.csv "Which region grew fastest? Plot it."

Needs a key of a model provider in the environment. Charts appear in `charts/`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from agents import Agent, RunConfig, Runner

from cellbox import AsyncSandbox
from cellbox.integrations import ArtifactStore, AsyncSandboxTools
from cellbox.integrations.openai_agents import code_tools

INSTRUCTIONS = """You are a data analyst. The data is in /workspace/data.csv: look at it before you use it.
Compute every number with run_python, never in your head. Use matplotlib for charts; the user sees them by themselves.
State your assumptions in one sentence."""


async def analyse(data: Path, question: str, charts: Path, model: Any = None) -> str:
    """Answer one question about a file; charts go to a directory."""
    async with await AsyncSandbox.create(ttl_seconds=1800) as sandbox:
        await sandbox.filesystem.upload(data, "/workspace/data.csv")
        tools = AsyncSandboxTools(sandbox, artifacts=ArtifactStore(charts))
        agent = Agent(name="Analyst", instructions=INSTRUCTIONS, model=model, tools=code_tools(tools))
        result = await Runner.run(agent, question, run_config=RunConfig(tracing_disabled=True))
        return str(result.final_output)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: data_analyst.py FILE.csv QUESTION")
    print(asyncio.run(analyse(Path(sys.argv[1]), sys.argv[2], Path("charts"))))
