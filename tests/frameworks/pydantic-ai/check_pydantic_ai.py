"""Pydantic AI: the toolset, checked answers, the chat service, with the framework's own function model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pydantic_ai.models
import pytest
from fastapi.testclient import TestClient
from pydantic_ai import Agent, BinaryContent, UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from cellbox import AsyncSandbox
from cellbox.integrations.pydantic_ai import code_toolset

PNG_CODE = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()"


def script(*steps: Any) -> FunctionModel:
    """A model that calls `run_python` with each text, makes each other call, and says "done" in the end."""
    left = [("run_python", {"code": step}) if isinstance(step, str) else step for step in steps]

    def answer(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if not left:
            return ModelResponse(parts=[TextPart("done")])
        name, arguments = left.pop(0)
        return ModelResponse(parts=[ToolCallPart(name, arguments)])

    return FunctionModel(answer)


def returns(messages: list[ModelMessage]) -> list[ToolReturnPart]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


@pytest.fixture(scope="module")
async def sandbox(anyio_backend: str) -> AsyncIterator[AsyncSandbox]:
    async with await AsyncSandbox.create(ttl_seconds=600) as made:
        yield made


async def test_state_persists_errors_are_retries_and_images_stay_out(sandbox: AsyncSandbox) -> None:
    toolset = code_toolset(only=["run_python", "view_image"])
    agent = Agent(
        script("x = 20", "undefined", "x + 1", PNG_CODE, ("view_image", {"image": "chart-1"})),
        deps_type=AsyncSandbox,
        toolsets=[toolset],
    )
    result = await agent.run("go", deps=sandbox)
    assert result.output == "done"
    first, retried, sum_, chart, seen = returns(result.all_messages())
    assert first.content == "(done; it printed nothing)"
    assert retried.outcome == "retried" and "NameError" in str(retried.content)
    assert sum_.content == "21"
    assert str(chart.content).startswith("[chart-1.png") and chart.metadata["artifacts"][0]["id"] == "chart-1"
    assert "is shown" in str(seen.content)
    shown = [
        content
        for message in result.all_messages()
        for part in message.parts
        if isinstance(part, UserPromptPart) and not isinstance(part.content, str)
        for content in part.content
        if isinstance(content, BinaryContent)
    ]
    assert [image.media_type for image in shown] == ["image/png"]


async def test_retries_are_bounded(sandbox: AsyncSandbox) -> None:
    agent = Agent(script(*["1 / 0"] * 5), toolsets=[code_toolset(sandbox, max_retries=2)])
    with pytest.raises(UnexpectedModelBehavior):
        await agent.run("go")


def test_the_page_runs(run_page: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each agent of the page gets the next scripted model, whatever model it names."""
    wrong = {"answer": "42", "value": 42, "code_used": "21 * 2"}
    right = {"answer": "42", "value": 42, "code_used": "6 * 7"}
    models = [
        script("import pandas as pd\npd.read_csv('sales.csv').total.sum()"),
        script("6 * 7", ("final_result", wrong), ("final_result", right)),
        script(("count_lines", {"path": "notes.txt"})),
    ]
    infer = pydantic_ai.models.infer_model
    monkeypatch.setattr(
        pydantic_ai.models,
        "infer_model",
        lambda model, *more: models.pop(0) if isinstance(model, str) else infer(model, *more),
    )
    run_page("pydantic-ai.md")
    assert not models


def test_two_users_of_the_chat_service_cannot_meet(example: Callable[[str], ModuleType], tmp_path: Path) -> None:
    module = example("chat_service")
    alice, bob = ({"Authorization": f"Bearer token-of-{name}"} for name in ("alice", "bob"))

    def ask(client: TestClient, who: dict[str, str], text: str) -> dict[str, Any]:
        answer = client.post("/chat", json={"text": text}, headers=who)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def model(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        """Runs what the user says and says what came of it."""
        last = messages[-1].parts[-1]
        if isinstance(last, ToolReturnPart):
            return ModelResponse(parts=[TextPart(str(last.content))])
        assert isinstance(last, UserPromptPart)
        return ModelResponse(parts=[ToolCallPart("run_python", {"code": str(last.content)})])

    database = tmp_path / "sessions.sqlite"
    with TestClient(module.create_app(FunctionModel(model), database)) as client:
        assert client.post("/chat", json={"text": "1"}).status_code == 401
        ask(client, alice, "secret = 'of alice'")
        assert ask(client, bob, "'secret' in globals()")["text"] == "False"
        chart = ask(client, alice, PNG_CODE)["charts"][0]
        assert client.get(f"/charts/{chart}", headers=alice).content.startswith(b"\x89PNG")
        assert client.get(f"/charts/{chart}", headers=bob).status_code == 404
    with TestClient(module.create_app(FunctionModel(model), database)) as client:  # after a restart
        assert ask(client, alice, "secret")["text"] == "'of alice'"
        assert ask(client, bob, "'secret' in globals()")["text"] == "False"
        assert [client.delete("/chat", headers=who).status_code for who in (alice, bob)] == [204, 204]
        assert ask(client, alice, "'secret' in globals()")["text"].endswith("False")
        client.delete("/chat", headers=alice)
