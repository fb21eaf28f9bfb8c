"""What was run in a real sandbox, read back: over every route, by every client, after its end, and run again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellbox import CellEntry, Client, CommandEntry, Journal, Sandbox
from cellbox.cli.main import run
from cellbox.errors import SandboxNotFoundError

from ..conftest import Daemon

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> Iterator[Client]:
    with daemon.client() as made:
        yield made


@pytest.fixture(scope="module")
def ended(client: Client) -> Sandbox:
    """A sandbox that has done a bit of everything and is gone."""
    with client.sandboxes.create(ttl_seconds=120) as sandbox:
        context = sandbox.create_code_context()
        context.run_code("x = 20\nx + 1")
        context.run_code("print('streamed')\nx", on_stdout=lambda _text: None)
        context.run_code("1 / 0")
        context.run_code("import time\ntime.sleep(60)", timeout_seconds=0.2)
        sandbox.exec("cat; echo oops >&2; exit 4", stdin="typed", env={"TOKEN": "hidden-value"}, cwd="/tmp")
        list(sandbox.exec_stream("seq 3"))
        with sandbox.shells.create() as shell:
            shell.run("cd /tmp")
            list(shell.stream("pwd; exit 5"))
    return sandbox


@pytest.fixture(scope="module")
def journal(ended: Sandbox) -> Journal:
    return ended.journal()


def test_every_cell_and_command_is_there_after_the_end(journal: Journal) -> None:
    assert [entry.number for entry in journal] == [1, 2, 3, 4, 5, 6, 7, 8] and journal.missing == 0
    value, streamed, failed, slow = journal.cells
    assert value.execution is not None and value.execution.results == [{"text/plain": "21"}]
    assert streamed.execution is not None
    assert (streamed.execution.stdout, streamed.execution.results) == ("streamed\n", [{"text/plain": "20"}])
    assert failed.execution is not None and failed.execution.error_info is not None
    assert failed.execution.error_info.name == "ZeroDivisionError"
    assert slow.execution is not None and (slow.execution.reason, slow.execution.duration_ms > 100) == ("timeout", True)
    assert all(isinstance(cell, CellEntry) and cell.language == "python" for cell in journal.cells)
    command, stream = journal.commands
    assert isinstance(command, CommandEntry) and command.result is not None and stream.result is not None
    assert (command.stdin, command.cwd, command.env_names) == ("typed", "/tmp", ["TOKEN"])
    assert (command.result.stdout, command.result.stderr, command.result.exit_code) == ("typed", "oops\n", 4)
    assert stream.result.stdout == "1\n2\n3\n"
    first, second = journal.shell_commands
    assert first.result is not None and (first.cmd, first.result.cwd) == ("cd /tmp", "/tmp")
    assert second.result is not None and second.shell_id == first.shell_id
    assert (second.result.output, second.result.exit_code) == ("/tmp\n", 5)
    assert "hidden-value" not in json.dumps(journal.as_json())


def test_it_belongs_to_the_owner(client: Client, daemon: Daemon, ended: Sandbox) -> None:
    key = client.tokens.create("journal-stranger", owner="journal-stranger").token
    with daemon.client(key) as stranger:
        with pytest.raises(SandboxNotFoundError) as foreign:
            stranger.sandboxes.journal(ended.id)
        with pytest.raises(SandboxNotFoundError) as unknown:
            stranger.sandboxes.journal(ended.id[:-1] + ("0" if ended.id[-1] != "0" else "1"))
    assert foreign.value.message == unknown.value.message


def test_the_command_line_shows_saves_and_replays_it(
    daemon: Daemon, ended: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CELLBOX_API_URL", daemon.url)
    monkeypatch.setenv("CELLBOX_API_KEY", daemon.admin_key)
    assert run(["journal", ended.id]) == 0
    shown = capsys.readouterr().out
    assert (
        "[1] " in shown and "    x = 20\n    x + 1\n21\n" in shown and "command, " in shown and "exit code 4" in shown
    )
    notebook = tmp_path / "run.ipynb"
    assert run(["journal", ended.id, "--save", str(notebook)]) == 0
    document = json.loads(notebook.read_text())
    del document["cells"][4]  # the cell that ran out of time takes it again
    notebook.write_text(json.dumps(document))
    assert run(["replay", str(notebook)]) == 0, capsys.readouterr()
    document["cells"][1]["outputs"][0]["data"]["text/plain"] = "22"
    notebook.write_text(json.dumps(document))
    capsys.readouterr()
    assert run(["replay", str(notebook), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "cells": 7,
        "same": False,
        "differences": [{"cell": 1, "output": "text/plain", "recorded": "22\n", "replayed": "21\n"}],
    }
    notebook.write_text("{}")
    assert run(["replay", str(notebook)]) == 2
    assert "is no notebook" in capsys.readouterr().err
