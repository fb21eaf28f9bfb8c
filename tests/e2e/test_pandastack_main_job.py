"""The main job, driven by the unmodified `pandastack` client from the package index: what an agent's code tool does."""

from __future__ import annotations

import base64
import importlib.resources
from collections.abc import Iterator
from pathlib import Path

import pandastack
import pytest
from pandastack.client import Client
from pandastack.exceptions import NotFoundError, SandboxTimeout

from .conftest import Daemon

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def panda(daemon: Daemon) -> Iterator[pandastack.Sandbox]:
    client = Client(api_key=daemon.admin_key, api_url=daemon.url)
    sandbox = client.sandboxes.create(template="code-interpreter", ttl_seconds=600, metadata={"job": "weather"})
    yield sandbox
    sandbox.kill()


def test_upload_analyse_plot_report(panda: pandastack.Sandbox, tmp_path: Path) -> None:
    csv = importlib.resources.files("vega_datasets") / "_data" / "seattle-weather.csv"
    with importlib.resources.as_file(csv) as local:
        panda.filesystem.upload(local, "/workspace/weather.csv")
        rows = local.read_text().count("\n") - 1

    context = panda.create_code_context()
    loaded = context.run_code(
        "import pandas as pd\ndf = pd.read_csv('/workspace/weather.csv')\nprint(len(df))\nlen(df)"
    )
    assert loaded.error is None
    assert (loaded.stdout, loaded.text) == (f"{rows}\n", str(rows))

    table = context.run_code("df.groupby('weather').temp_max.mean().round(1).to_frame()")
    assert table.error is None
    assert table.stdout == ""
    assert table.results[0].html is not None
    assert "<table" in table.results[0].html
    assert "drizzle" in (table.text or "")

    chart = context.run_code(
        "import matplotlib.pyplot as plt\ndf.groupby('weather').size().plot(kind='bar')\nplt.title('Days')\nplt.show()"
    )
    assert chart.error is None
    assert chart.stdout == ""
    assert base64.b64decode(chart.results[0].png or "").startswith(PNG_MAGIC)
    assert sum(result.png is not None for result in chart.results) == 1

    failed = context.run_code("def ratio(a, b):\n    return a / b\n\nratio(1, 0)")
    assert failed.error is not None
    assert "return a / b" in failed.error
    assert failed.error.rstrip().endswith("ZeroDivisionError: division by zero")
    assert "\x1b" not in failed.error
    assert failed.exit_code == 1

    with pytest.raises(SandboxTimeout):
        context.run_code("while True:\n    pass", timeout_seconds=1)
    assert context.run_code("len(df)").text == str(rows), "state is kept after a timeout"

    context.run_code("open('/workspace/report.md', 'w').write(f'# Weather\\n\\n{len(df)} days\\n')")
    assert panda.filesystem.read("/workspace/report.md").decode() == f"# Weather\n\n{rows} days\n"
    panda.filesystem.download("/workspace/report.md", tmp_path / "report.md")
    assert (tmp_path / "report.md").read_text().endswith(f"{rows} days\n")
    context.close()


def test_commands(panda: pandastack.Sandbox) -> None:
    result = panda.exec("echo out; echo err >&2; exit 3", check=False)
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    assert panda.exec("id -un").stdout == "root\n"
    assert panda.exec("python --version").stdout == panda.exec("python3 --version").stdout
    assert panda.run_code("print(6 * 7)").stdout == "42\n"
    assert panda.run_code("echo $((6 * 7))", language="bash").stdout == "42\n"
    with pytest.raises(SandboxTimeout):
        panda.exec("sleep 30", timeout_seconds=1)
    assert panda.exec("pgrep -x sleep; true").stdout == "", "nothing of a timed-out command is left"


def test_streaming(panda: pandastack.Sandbox) -> None:
    text = "é ☃ 日本 😀 \u2028 \x85"
    panda.filesystem.write("/tmp/text", text)
    printed: list[str] = []
    complaints: list[str] = []
    code = panda.exec_stream("cat /tmp/text; echo oops >&2; exit 4", printed.append, complaints.append)
    assert ("".join(printed), "".join(complaints), code) == (text, "oops\n", 4)
    with pytest.raises(SandboxTimeout):
        panda.exec_stream("echo begin; sleep 30", printed.append, timeout_seconds=1)
    assert printed[-1] == "begin\n", "what was printed before a timeout is not lost"


def test_a_killed_sandbox_is_gone(daemon: Daemon) -> None:
    client = Client(api_key=daemon.admin_key, api_url=daemon.url)
    with client.sandboxes.create(template="base", ttl_seconds=60) as sandbox:
        assert sandbox.exec("cat /etc/os-release").stdout.startswith("PRETTY_NAME")
        sandbox_id = sandbox.id
    with pytest.raises(NotFoundError):
        client.sandboxes.get(sandbox_id)
    assert sandbox_id not in [row.id for row in client.sandboxes.list()]
