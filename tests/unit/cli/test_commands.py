"""What each command prints and how it ends. Exit codes and JSON keys are promises to scripts."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellbox import errors
from cellbox.cli.exits import Exit, meaning

Command = Callable[..., Any]
HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x1b[31mred\u202e"


@pytest.fixture
def sandbox(cellbox: Command) -> str:
    return cellbox("create", "--ttl", "600", "--metadata", "task=demo").out.strip()


def test_create_prints_the_id_and_ps_lists_it(cellbox: Command, sandbox: str) -> None:
    listed = cellbox("ps")
    assert listed.code == 0
    assert sandbox in listed.out
    assert "task=demo" in listed.out
    assert cellbox("ps", "-q").out.split() == [sandbox]
    assert json.loads(cellbox("ps", "--json").out)[0]["id"] == sandbox


def test_inspect_tells_everything(cellbox: Command, sandbox: str) -> None:
    assert "code-interpreter" in cellbox("inspect", sandbox[:8]).out
    assert {"id", "usage", "lifecycle", "contexts", "enforced"} <= set(
        json.loads(cellbox("inspect", sandbox, "--json").out)
    )


def test_kill_removes_and_a_second_look_finds_nothing(cellbox: Command, sandbox: str) -> None:
    assert cellbox("kill", sandbox).code == 0
    gone = cellbox("inspect", sandbox)
    assert gone.code == Exit.NOT_FOUND
    assert "cellbox ps" in gone.err
    assert "Traceback" not in gone.err


def test_pool_is_resized_and_shown(cellbox: Command) -> None:
    assert cellbox("pool", "set", "base=1-3", "*=0").code == 0
    shown = json.loads(cellbox("pool", "--json").out)
    assert shown["sizes"] == {"base": {"min": 1, "max": 3}, "*": {"min": 0, "max": 0}}
    told = cellbox("pool")
    assert "0 ready" in told.out + told.err
    assert cellbox("pool", "set", "base").code == Exit.USAGE


def test_kill_goes_on_after_one_that_is_gone(cellbox: Command, sandbox: str) -> None:
    result = cellbox("kill", "ffffffff", sandbox)
    assert result.code == Exit.NOT_FOUND
    assert cellbox("ps", "-q").out == ""


def test_kill_all(cellbox: Command, sandbox: str) -> None:
    assert cellbox("kill", "--all").code == 0
    assert cellbox("ps", "-q").out == ""


def test_exec_has_the_commands_output_and_exit_code(cellbox: Command, sandbox: str) -> None:
    done = cellbox("exec", "--no-stdin", sandbox, "--", "echo", "hello")
    assert (done.code, done.out) == (0, "hello")
    assert cellbox("exec", "--no-stdin", sandbox, "--", "false").code == 1


def test_exec_says_when_time_was_up(cellbox: Command, sandbox: str) -> None:
    done = cellbox("exec", "--no-stdin", "--timeout", "0.1", sandbox, "--", "sleep 5")
    assert done.code == Exit.TIMEOUT
    assert "time was up" in done.err


def test_exec_tells_of_a_death_of_the_guest(cellbox: Command, sandbox: str) -> None:
    done = cellbox("exec", "--no-stdin", sandbox, "--", "die")
    assert (done.code, done.out) == (Exit.FAILURE, "begun")
    assert "guest died" in done.err


def test_exec_needs_a_command(cellbox: Command, sandbox: str) -> None:
    assert cellbox("exec", "--no-stdin", sandbox).code == Exit.USAGE


def test_exec_into_a_pipe_is_exact(cellbox: Command, sandbox: str) -> None:
    assert cellbox("exec", "--no-stdin", sandbox, "--", f"echo {HOSTILE}").out == HOSTILE


def on_a_terminal(api_url: str, *arguments: str) -> bytes:
    """Run the command with a terminal as its standard output and return what the terminal got."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "CELLBOX_API_URL": api_url, "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "cellbox.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # how Linux says that nobody holds the other end any more
            break
        if not piece:
            break
        seen += piece
    os.close(leader)
    process.wait(30)
    return seen


def test_a_sandbox_cannot_drive_the_terminal(cellbox: Command, sandbox: str, api_url: str) -> None:
    seen = on_a_terminal(api_url, "exec", sandbox, "--", f"echo {HOSTILE}")
    assert seen.decode() == "\x1b[31mred\\u202e\x1b[0m"


def test_raw_is_what_it_says(cellbox: Command, sandbox: str, api_url: str) -> None:
    assert on_a_terminal(api_url, "exec", "--raw", sandbox, "--", f"echo {HOSTILE}").decode() == HOSTILE


def test_names_in_tables_are_escaped_everywhere(cellbox: Command) -> None:
    cellbox("create", "--metadata", f"note={HOSTILE}\nfake row")
    table = cellbox("ps").out
    assert "\x1b" not in table
    assert len(table.splitlines()) == 2
    assert "\x1b" not in cellbox("ps", "--json").out


@pytest.mark.parametrize(
    ("code", "exit_code", "out"),
    [("print(hi)", 0, "hi\n"), ("6 * 7", 0, "6 * 7\n"), ("raise", 1, ""), ("exit(3)", 3, "")],
)
def test_run_shows_output_value_and_traceback(cellbox: Command, code: str, exit_code: int, out: str) -> None:
    done = cellbox("run", "-c", code)
    assert (done.code, done.out) == (exit_code, out)
    assert ("ValueError: no" in done.err) == (code == "raise")
    assert cellbox("ps", "-q").out == ""


def test_run_saves_charts_and_names_them(cellbox: Command, tmp_path: Path) -> None:
    done = cellbox("run", "-c", "chart", "--save-charts", str(tmp_path / "charts"))
    chart = tmp_path / "charts" / "chart-1.png"
    assert done.code == 0
    assert str(chart) in done.err
    assert done.out == ""
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_run_keeps_the_sandbox_when_told(cellbox: Command) -> None:
    done = cellbox("run", "--keep", "-c", "1")
    (kept,) = cellbox("ps", "-q").out.split()
    assert kept in done.err
    assert cellbox("run", "--sandbox", kept, "-c", "2").out == "2\n"
    assert cellbox("ps", "-q").out.split() == [kept]


def test_run_stops_code_whose_time_is_up(cellbox: Command) -> None:
    assert cellbox("run", "--timeout", "0.1", "-c", "sleep(5)").code == Exit.TIMEOUT


def test_run_as_json_has_stable_keys(cellbox: Command, tmp_path: Path) -> None:
    document = json.loads(cellbox("run", "--json", "-c", "chart", "--save-charts", str(tmp_path)).out)
    assert set(document) == {
        "sandbox_id", "stdout", "stderr", "text", "results", "charts", "error", "exit", "outcome", "state_kept", "hint",
        "duration_ms",
    }  # fmt: skip
    assert document["charts"] == [str(tmp_path / "chart-1.png")]


def test_run_reads_a_file_and_uploads_others(cellbox: Command, tmp_path: Path) -> None:
    script, data = tmp_path / "job.py", tmp_path / "data.csv"
    script.write_text("print(done)")
    data.write_text("a,b\n")
    done = cellbox("run", str(script), "--file", f"{data}:/workspace/data.csv", "--keep")
    assert done.out == "done\n"
    (kept,) = cellbox("ps", "-q").out.split()
    assert cellbox("cp", f"{kept}:/workspace/data.csv", "-").out == "a,b\n"


@pytest.mark.parametrize("line", ["run", "run x.py -c 1", "run missing.py", "nonsense", "kill", "cp a b", "ps --what"])
def test_nonsense_is_a_usage_error(cellbox: Command, line: str) -> None:
    assert cellbox(*line.split()).code == Exit.USAGE


def test_cp_copies_files_both_ways(cellbox: Command, sandbox: str, tmp_path: Path) -> None:
    local = tmp_path / "in.bin"
    local.write_bytes(bytes(range(256)))
    assert cellbox("cp", str(local), f"{sandbox}:/workspace/").code == 0
    assert cellbox("cp", f"{sandbox}:/workspace/in.bin", str(tmp_path / "out.bin")).code == 0
    assert (tmp_path / "out.bin").read_bytes() == local.read_bytes()


def test_cp_copies_directories_both_ways(cellbox: Command, sandbox: str, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "file.txt").write_text("x")
    assert cellbox("cp", str(tmp_path / "in"), f"{sandbox}:/workspace").code == 0
    assert cellbox("cp", f"{sandbox}:/workspace/deep", str(tmp_path / "out")).code == 0
    assert (tmp_path / "out" / "file.txt").read_text() == "x"


def test_cp_of_nothing(cellbox: Command, sandbox: str, tmp_path: Path) -> None:
    assert cellbox("cp", f"{sandbox}:/nothing", str(tmp_path)).code == Exit.NOT_FOUND
    assert cellbox("cp", str(tmp_path / "nothing"), f"{sandbox}:/x").code == Exit.USAGE


def test_keys_through_the_daemon(cellbox: Command) -> None:
    created = json.loads(cellbox("key", "create", "ci", "--expires-days", "30", "--json").out)
    assert created["token"].startswith("pds_")
    assert created["prefix"] in cellbox("key", "list").out
    assert created["token"] not in cellbox("key", "list", "--json").out
    assert cellbox("key", "revoke", created["prefix"]).code == 0
    assert cellbox("key", "revoke", created["prefix"]).code == Exit.NOT_FOUND


def test_the_first_key_is_made_without_a_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from cellbox.cli.main import run

    monkeypatch.delenv("CELLBOX_API_URL", raising=False)
    assert run(["key", "create", "ops", "--admin", "--data-dir", str(tmp_path / "data")]) == 0
    out, _ = capfd.readouterr()
    assert out.startswith("pds_")
    assert run(["key", "list", "--json", "--data-dir", str(tmp_path / "data")]) == 0
    (key,) = json.loads(capfd.readouterr().out)
    assert (key["label"], key["is_admin"]) == ("ops", True)


# httpcore2 leaves the socket of a failed connection to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_daemon_there_is_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from cellbox.cli.main import run

    monkeypatch.setenv("CELLBOX_API_URL", f"unix:{tmp_path}/none.sock")
    assert run(["ps"]) == Exit.DAEMON_UNAVAILABLE
    _, err = capfd.readouterr()
    assert "cellbox serve" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.AuthenticationError("x"), Exit.AUTHENTICATION),
        (errors.PermissionDeniedError("x"), Exit.AUTHENTICATION),
        (errors.UnknownTemplateError("x"), Exit.NOT_FOUND),
        (errors.PathNotFoundError("x"), Exit.NOT_FOUND),
        (errors.InvalidRequestError("x"), Exit.USAGE),
        (errors.EngineUnavailableError("x"), Exit.ENGINE_UNFIT),
        (errors.ConnectionLostError("x"), Exit.DAEMON_UNAVAILABLE),
        (errors.CapacityError("x"), Exit.FAILURE),
    ],
)
def test_errors_end_in_their_code(error: errors.CellboxError, code: Exit) -> None:
    assert meaning(error)[0] == code
