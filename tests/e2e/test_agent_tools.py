"""Tools and sessions in real sandboxes: what a model gets, who shares a sandbox, and what happens when one is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from cellbox import AsyncSandbox
from cellbox.errors import ConnectionLostError, DaemonUnavailableError, SandboxNotFoundError
from cellbox.integrations import AsyncSandboxTools, AsyncSessions, Facts, Limits, SandboxTools, Sessions

from ..conftest import Daemon

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def tools(daemon: Daemon) -> Iterator[SandboxTools]:
    with daemon.client() as client, client.sandboxes.create(ttl_seconds=300) as sandbox:
        yield SandboxTools(sandbox, limits=Limits(stdout=500, file=100))


@pytest.fixture
async def sessions(daemon: Daemon) -> AsyncIterator[AsyncSessions]:
    async with AsyncSessions(ttl_seconds=120, api_url=daemon.url, api_key=daemon.admin_key) as made:
        yield made


def test_python_persists_and_its_failures_are_text(tools: SandboxTools) -> None:
    assert tools.run_python("x = 20").text == "(done; it printed nothing)"
    assert tools.call("run_python", '{"code": "x + 1", "timeout_seconds": "30"}').text == "21"
    assert "NameError: name 'undefined'" in tools.run_python("undefined").error
    missing = tools.run_python("import no_such_module")
    assert "ModuleNotFoundError" in missing.error and "network" in missing.hint
    slow = tools.run_python("while True: pass", timeout_seconds=1)
    assert slow.error.startswith("cell timeout after 1s") and "loop" in slow.hint
    assert tools.run_python("x").text == "20"
    flood = tools.run_python("print('y' * 100_000)").stdout
    assert len(flood) < 800 and "99501 of 100001 characters were left out" in flood


def test_charts_are_kept_apart(tools: SandboxTools) -> None:
    answer = tools.run_python("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    (chart,) = answer.artifacts
    assert len(answer.text) < 150
    found = tools.artifacts.get(chart.id)
    assert found is not None and found[1].startswith(b"\x89PNG")
    assert tools.view_image(chart.id).shown == [chart]
    assert "There are: " in tools.view_image("chart-99").hint
    tools.session.sandbox().filesystem.write("/workspace/photo.png", found[1])
    assert tools.read_file("photo.png").artifacts[0].width == chart.width


def test_files_and_commands(tools: SandboxTools) -> None:
    assert tools.write_file("notes/a.txt", "é" * 80).text == "Wrote /workspace/notes/a.txt (160 bytes)."
    first = tools.read_file("notes/a.txt").text
    assert first.startswith("é" * 50 + "\n[… 60 of 160 bytes follow: read on with offset=100")
    assert tools.read_file("notes/a.txt", offset=100).text == "é" * 30
    assert "/workspace/notes/a.txt  160 bytes" in tools.list_files(depth=2).text
    assert "No such file" in tools.read_file("nope").error and "binary file" in tools.read_file("/bin/ls").error
    assert tools.run_shell("cd /; pwd; exit 3").text == "/\n[exit code 3]"
    assert tools.run_shell("pwd").text == "/workspace"
    assert "killed with everything" in tools.run_shell("sleep 60", timeout_seconds=0.5).error


def test_arguments_that_make_no_sense_are_told(tools: SandboxTools) -> None:
    for arguments in ("{", '{"cod": "1"}', '{"code": "1", "timeout_seconds": 1e9}', "[]"):
        assert tools.call("run_python", arguments).error.startswith("The arguments of run_python make no sense")
    with pytest.raises(ValueError, match="No tool 'fly'"):
        tools.call("fly", {})


def test_packages_need_a_network_and_names(tools: SandboxTools) -> None:
    assert "no network" in tools.install_packages(["polars"]).error
    assert "no name of a package" in tools.install_packages(["--index-url=http://evil"]).error
    assert "install_packages" not in {spec.name for spec in tools.specs()}
    assert "pandas" in tools.specs()[0].description


def test_a_given_sandbox_that_is_gone_is_an_exception(daemon: Daemon) -> None:
    with daemon.client() as client:
        sandbox = client.sandboxes.create(template="base", ttl_seconds=60)
        tools = SandboxTools(sandbox)
        sandbox.kill()
        with pytest.raises(SandboxNotFoundError):
            tools.run_shell("true")


async def test_conversations_are_apart_and_agents_of_one_are_together(sessions: AsyncSessions) -> None:
    first, second = (AsyncSandboxTools(sessions.session("alice")) for _ in range(2))
    results: list[str] = []

    async def look(tools: AsyncSandboxTools, code: str) -> None:
        results.append((await tools.run_python(code)).text)

    async with anyio.create_task_group() as group:  # all at once: one sandbox is made, not four
        for tools in (first, second, first, second):
            group.start_soon(look, tools, "import socket; socket.gethostname()")
    assert len(results) == 4 and len(set(results)) == 1
    await first.run_python("secret = 1")
    other = AsyncSandboxTools(sessions.session("bob"))
    apart = AsyncSandboxTools(sessions.session("alice", compartment="documents"))
    assert [(await one.run_python("'secret' in globals()")).text for one in (second, other, apart)] == [
        "True",
        "False",
        "False",
    ]
    ids = {(await one.session.sandbox()).id for one in (first, other, apart)}
    assert len(ids) == 3
    await sessions.end("alice")
    left = {sandbox.id for sandbox in await sessions.client.sandboxes.list()} & ids
    assert left == {(await other.session.sandbox()).id}


async def test_a_sandbox_that_is_gone_is_replaced_and_the_model_is_told(sessions: AsyncSessions) -> None:
    tools = AsyncSandboxTools(sessions.session("carol"))
    await tools.run_python("x = 1")
    await (await tools.session.sandbox()).kill()
    answer = await tools.run_python("'x' in globals()")
    assert answer.result == "False" and "fresh one" in answer.text
    assert "fresh one" not in (await tools.run_python("1")).text
    await (await tools.session.context()).close()
    answer = await tools.run_python("'x' in globals()")
    assert answer.result == "False" and "Python process of this conversation had ended" in answer.text


async def test_a_restarted_application_finds_its_conversations(daemon: Daemon, tmp_path: Path) -> None:
    prepared: list[str] = []

    async def prepare(sandbox: AsyncSandbox) -> None:
        prepared.append(sandbox.id)
        await sandbox.filesystem.write("/workspace/data.txt", "7")

    def registry() -> AsyncSessions:
        return AsyncSessions(tmp_path / "s.sqlite", prepare=prepare, api_url=daemon.url, api_key=daemon.admin_key)

    async with registry() as before:
        await AsyncSandboxTools(before.session("dave")).run_python("x = int(open('data.txt').read())")
    async with registry() as after, registry() as beside:
        tools = AsyncSandboxTools(after.session("dave"))
        assert (await tools.run_python("x")).text == "7"
        assert (await AsyncSandboxTools(beside.session("dave")).run_python("x")).text == "7"
        assert len(prepared) == 1
        # Another process replaces a sandbox that is gone; this one goes over to it instead of making a third.
        await (await tools.session.sandbox()).kill()
        await AsyncSandboxTools(beside.session("dave")).run_python("y = 5")
        assert (await tools.run_python("y")).text.endswith("5")
        assert len(prepared) == 2
        assert await after.end_idle(3600) == 0
        await after.end("dave")
        with pytest.raises(SandboxNotFoundError):
            await after.client.sandboxes.get(prepared[1])


async def test_a_ttl_counts_from_the_last_use(daemon: Daemon) -> None:
    async with AsyncSessions(ttl_seconds=4, api_url=daemon.url, api_key=daemon.admin_key) as sessions:
        tools = AsyncSandboxTools(sessions.session("erin"))
        sandbox = await tools.session.sandbox()
        expires = (await sandbox.refresh()).expires_at
        with anyio.fail_after(30):
            while True:
                assert (await tools.run_python("1")).text == "1"
                now = (await sandbox.refresh()).expires_at
                if expires is not None and now is not None and (now - expires).total_seconds() > 0.5:
                    break
                await anyio.sleep(0.1)


async def test_a_conversation_sleeps_on_disk_and_goes_on_where_it_was(sessions: AsyncSessions) -> None:
    tools = AsyncSandboxTools(sessions.session("grace"))
    await tools.run_python("x = 41")
    sandbox = await tools.session.sandbox()
    await sessions.session("grace").hibernate()
    assert (await sandbox.refresh()).status == "hibernated"
    assert (await tools.run_python("x + 1")).text == "42"
    assert [cell.code for cell in (await sandbox.journal()).cells] == ["x = 41", "x + 1"]


async def test_an_unprepared_sandbox_is_not_left_behind(daemon: Daemon) -> None:
    made: list[str] = []

    def prepare(sandbox: AsyncSandbox) -> None:
        made.append(sandbox.id)
        raise RuntimeError("no data")

    async with AsyncSessions(prepare=prepare, api_url=daemon.url, api_key=daemon.admin_key) as sessions:
        with pytest.raises(RuntimeError, match="no data"):
            await AsyncSandboxTools(sessions.session("x")).run_python("1")
        with pytest.raises(SandboxNotFoundError):
            await sessions.client.sandboxes.get(made[0])
    with pytest.raises(ValueError, match="1 to 512 characters"):
        AsyncSessions(api_url=daemon.url).session("")


async def test_faults_of_the_platform_are_tried_once_more_where_that_is_safe(
    daemon: Daemon, sessions: AsyncSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = AsyncSandboxTools(sessions.session("frank"), facts=Facts())
    sandbox = await tools.session.sandbox()
    faults: list[Exception] = []
    ran = 0

    def failing(original):
        async def call(*args, **kwargs):
            nonlocal ran
            ran += 1
            if faults:
                raise faults.pop()
            return await original(*args, **kwargs)

        return call

    monkeypatch.setattr(sandbox, "exec", failing(sandbox.exec))
    monkeypatch.setattr(sandbox.filesystem, "list", failing(sandbox.filesystem.list))
    faults[:] = [DaemonUnavailableError("away")]
    assert (await tools.run_shell("echo 1")).text == "1"
    faults[:] = [ConnectionLostError("lost")]
    assert not (await tools.list_files()).is_error
    for fault, call in ((ConnectionLostError("lost"), 1), (DaemonUnavailableError("away"), 2)):
        faults[:], ran = [fault] * 5, 0
        with pytest.raises(type(fault)):
            await tools.run_shell("echo 1")
        assert ran == call


def test_the_blocking_flavour_makes_its_own_sandbox(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLBOX_API_URL", daemon.url)
    monkeypatch.setenv("CELLBOX_API_KEY", daemon.admin_key)
    with SandboxTools() as tools:
        assert tools.run_python("1 + 1").text == "2"
        made = tools.session.sandbox().id
    with daemon.client() as client:
        assert made not in {sandbox.id for sandbox in client.sandboxes.list()}
        with Sessions(api_url=daemon.url, api_key=daemon.admin_key) as sessions, pytest.raises(ValueError, match="key"):
            sessions.session("x" * 513)
