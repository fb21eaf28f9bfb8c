"""MCP: in memory, over stdio and over Streamable HTTP, with the SDK's own client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from cellbox.integrations import AsyncSessions
from cellbox.integrations.mcp import Callers, build_server

PNG_CODE = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()\n'drawn'"
COMMAND = [sys.executable, "-m", "cellbox.cli", "mcp"]


@pytest.fixture(scope="module")
async def client(anyio_backend: str) -> AsyncIterator[Client]:
    server = build_server(Callers(lambda key: AsyncSessions(api_key=key), needs_key=False))
    async with Client(server) as made:
        yield made


async def test_tools_have_descriptions_and_schemas(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {"run_python", "run_shell", "read_file", "write_file", "list_files", "view_image"} == set(tools)
    assert "pandas" in (tools["run_python"].description or "") and "no network" in (
        tools["run_python"].description or ""
    )
    assert tools["read_file"].annotations and tools["read_file"].annotations.read_only_hint
    assert all(tool.output_schema for tool in tools.values())


async def test_answers_are_structured_with_images_and_errors(client: Client) -> None:
    drawn = await client.call_tool("run_python", {"code": PNG_CODE})
    assert [part.type for part in drawn.content] == ["text", "image"]
    assert drawn.content[1].annotations.audience == ["user"]
    assert (
        drawn.structured_content["result"] == "'drawn'" and drawn.structured_content["artifacts"][0]["id"] == "chart-1"
    )
    seen = await client.call_tool("view_image", {"image": "chart-1"})
    assert seen.content[1].annotations.audience == ["assistant"]
    failed = await client.call_tool("run_python", {"code": "1 / 0"})
    assert failed.is_error and "ZeroDivisionError" in failed.structured_content["error"]
    unknown = await client.call_tool("no_such_tool", {})
    assert unknown.is_error and "there are run_python" in unknown.content[0].text


async def test_a_long_call_reports_progress(client: Client) -> None:
    told: list[str | None] = []

    async def note(_progress: float, _total: float | None, message: str | None) -> None:
        told.append(message)

    await client.call_tool("run_python", {"code": "import time; time.sleep(1.5)"}, progress_callback=note)
    assert told and told[0] == "run_python has been running for 1 s"


async def test_stdio(anyio_backend: str) -> None:
    parameters = StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=dict(os.environ))
    async with Client(stdio_client(parameters)) as client:
        await client.call_tool("run_python", {"code": "x = 20"})
        assert (await client.call_tool("run_python", {"code": "x + 1"})).structured_content == {"result": "21"}


async def test_http_callers_see_only_their_own(anyio_backend: str, tmp_path: Path) -> None:
    command = [*COMMAND, "--http", "127.0.0.1:0", "--store", str(tmp_path / "sessions.sqlite")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            url = server.stderr.readline().split()[-1]
            assert url.endswith("/mcp"), url
            assert await said(url, "x = 1; x") == {"result": "1"}
            assert await said(url, "x") == {"result": "1"}
            assert await said(url, "'x' in globals()", {"X-Cellbox-Session": "other"}) == {"result": "False"}
            with pytest.raises(Exception):  # noqa: B017, PT011 - how the client tells of it is its own affair
                await said(url, "x", {"Authorization": "Bearer pds_0000000000000000000000000000000000000000"})
        finally:
            server.terminate()


async def said(url: str, code: str, headers: dict[str, str] | None = None) -> Any:
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        answer = await client.call_tool("run_python", {"code": code})
        return answer.structured_content


def test_the_page_runs(run_page: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    run_page("mcp.md")
    assert capsys.readouterr().out == "{'result': '21'}\n"
