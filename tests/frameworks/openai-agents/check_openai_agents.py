"""OpenAI Agents SDK: function tools, sessions, images, handoffs, with the SDK's own scripted model."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from agents import Agent, MultiProvider, RunConfig, Runner
from agents.testing import ScriptedModel, assistant_message, function_call

from cellbox import AsyncSandbox
from cellbox.errors import DaemonUnavailableError
from cellbox.integrations import AsyncSessions, Facts
from cellbox.integrations.openai_agents import code_tools

PNG_CODE = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()"
QUIET = RunConfig(tracing_disabled=True)


def script(*steps: Any) -> ScriptedModel:
    """A model that calls `run_python` with each text, makes each other call, and says "done" in the end."""
    calls = [
        [function_call("run_python", {"code": step}, call_id=f"c{number}")]
        if isinstance(step, str)
        else [function_call(*step, call_id=f"c{number}")]
        for number, step in enumerate(steps)
    ]
    return ScriptedModel([*calls, [assistant_message("done")]])


def outputs(model: ScriptedModel) -> list[Any]:
    """What the model was given for its calls."""
    return [item["output"] for item in model.calls[-1].input if item.get("type") == "function_call_output"]


@pytest.fixture(scope="module")
async def sandbox(anyio_backend: str) -> AsyncIterator[AsyncSandbox]:
    async with await AsyncSandbox.create(ttl_seconds=600) as made:
        yield made


async def test_state_persists_errors_are_text_and_images_stay_out(sandbox: AsyncSandbox) -> None:
    model = script("x = 20", "x + 1", "undefined", PNG_CODE, ("view_image", {"image": "chart-1"}), ("run_python", "{"))
    agent = Agent(name="A", model=model, tools=code_tools(sandbox, only=["run_python", "view_image"]))
    result = await Runner.run(agent, "go", run_config=QUIET)
    assert result.final_output == "done"
    nothing, sum_, error, chart, seen, broken = outputs(model)
    assert (nothing, sum_) == ("(done; it printed nothing)", "21")
    assert "NameError: name 'undefined' is not defined" in error
    assert chart.startswith("[chart-1.png (image/png, ") and len(chart) < 200
    assert [part["type"] for part in seen] == ["input_text", "input_image"]
    assert seen[1]["image_url"].startswith("data:image/png;base64,")
    assert broken.startswith("Error:\nThe arguments of run_python make no sense")


async def test_each_run_brings_its_own_session(anyio_backend: str) -> None:
    agent = Agent(name="A", tools=code_tools())
    async with AsyncSessions(ttl_seconds=300) as sessions:
        for key, code, expected in (("a", "x = 1; x", "1"), ("b", "'x' in globals()", "False"), ("a", "x", "1")):
            model = script(code)
            await Runner.run(agent.clone(model=model), "go", context=sessions.session(key), run_config=QUIET)
            assert outputs(model) == [expected]


async def test_a_fault_of_the_platform_ends_the_run(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = AsyncSessions(api_url="http://127.0.0.1:9")
    agent = Agent(name="A", model=script("1"), tools=code_tools(sessions.session("a"), facts=Facts()))
    with pytest.raises(Exception, match="No daemon answers") as caught:
        await Runner.run(agent, "go", run_config=QUIET)
    assert isinstance(caught.value, DaemonUnavailableError) or isinstance(
        caught.value.__cause__, DaemonUnavailableError
    )
    await sessions.client.aclose()


def test_the_page_runs(run_page: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each agent of the page gets the next scripted model, whatever model it names."""
    models = [
        script("import statistics; statistics.stdev([4, 9, 11, 12, 17])"),
        script("x = 20"),
        script("x + 1"),
        script(PNG_CODE),
    ]
    scripts = list(models)
    handed: dict[int, ScriptedModel] = {}

    def get_model(self: MultiProvider, name: str | None) -> ScriptedModel:
        # A run asks for its model at every turn: the next script begins when the last one has nothing left.
        if not handed or not handed[0].remaining_steps:
            handed[0] = models.pop(0)
        return handed[0]

    monkeypatch.setattr(MultiProvider, "get_model", get_model)
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    run_page("openai-agents.md")
    assert not models
    assert [outputs(model)[0][:6] for model in scripts[:3]] == ["4.7222", "(done;", "21"]


def test_data_analyst(example: Callable[[str], ModuleType], tmp_path: Path) -> None:
    data = tmp_path / "sales.csv"
    with data.open("w", newline="") as file:
        csv.writer(file).writerows([("region", "total"), ("north", 3), ("south", 4)])
    model = script(
        "import pandas as pd\nsales = pd.read_csv('data.csv')\nsales.total.sum()",
        "sales.plot.bar(x='region', y='total')",
    )
    answer = asyncio.run(example("data_analyst").analyse(data, "Plot the totals", tmp_path / "charts", model))
    assert answer == "done"
    assert outputs(model)[0] == "7" or "7" in outputs(model)[0]
    assert (tmp_path / "charts/chart-1.png").read_bytes().startswith(b"\x89PNG")


def test_handoff(example: Callable[[str], ModuleType]) -> None:
    model = ScriptedModel(
        [
            [function_call("run_python", {"code": LOAD}, call_id="1")],
            [function_call("transfer_to_analyst", {}, call_id="2")],
            [function_call("run_python", {"code": "orders.groupby('region').total.sum().to_dict()"}, call_id="3")],
            [assistant_message("north 40, south 25")],
        ]
    )
    apart = script("'orders' in globals()", ("list_files", {}))
    assert asyncio.run(example("handoff").main(model, apart)) == ("north 40, south 25", "done")
    assert json.loads(outputs(model)[-1].replace("'", '"')) == {"north": 40.0, "south": 25.0}
    assert outputs(apart)[0] == "False"


LOAD = "import pandas as pd\norders = pd.read_csv('orders.csv').dropna()"
