"""`cellbox chat` as its user has it: the real command, a real service that speaks HTTP, a real sandbox."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cellbox

from ..chat_service import ChatService, Refuse, Say, chat_service, run_python
from .conftest import Daemon

pytestmark = pytest.mark.engine
COMMAND = [sys.executable, "-m", "cellbox.cli", "chat"]
PATIENCE_SECONDS = 60.0
CHART = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"


@pytest.fixture(scope="module")
def running() -> Iterator[ChatService]:
    with chat_service() as service:
        yield service


@pytest.fixture
def service(running: ChatService) -> ChatService:
    running.script, running.requests = [], []
    return running


@pytest.fixture
def environment(daemon: Daemon, service: ChatService, tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "CELLBOX_API_URL": daemon.url,
        "CELLBOX_API_KEY": daemon.admin_key,
        "OPENAI_BASE_URL": service.url,
        "OPENAI_API_KEY": "secret",
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "TERM": "xterm-256color",
    }


def _take_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests that run in the background are started with it ignored


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, environment: dict[str, str], directory: Path, *arguments: str) -> None:
        self._fd, theirs = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *COMMAND, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            cwd=directory,
            preexec_fn=_take_interrupts,
        )
        os.close(theirs)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def enter(self, line: str) -> None:
        self.type(f"{line}\r")

    def expect(self, pattern: str) -> str:
        """Wait until it shows something, and return what it showed until then; that is not looked at again."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := re.search(pattern, self.shown)):
            ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"never showed {pattern!r}: {self.shown[-3000:]}"
            piece = os.read(self._fd, 65536).decode(errors="replace")
            self.shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", piece).replace("\r", "")
        before, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


def ours(client: cellbox.Client) -> list[cellbox.Sandbox]:
    return [one for one in client.sandboxes.list() if one.metadata.get("session", "").startswith("chat-")]


def tool_answers(service: ChatService) -> list[str]:
    return [message["content"] for message in service.last_messages if message["role"] == "tool"]


def run(environment: dict[str, str], directory: Path, *arguments: str, stdin: bytes = b"") -> Any:
    done = subprocess.run(
        [*COMMAND, *arguments], input=stdin, env=environment, cwd=directory, capture_output=True, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_a_question_through_a_pipe(
    environment: dict[str, str], service: ChatService, client: cellbox.Client, tmp_path: Path
) -> None:
    (tmp_path / "orders.csv").write_text("total\n3\n4\n")
    read = "import pandas as pd; int(pd.read_csv('/workspace/orders.csv').total.sum())"
    service.script = [
        run_python(f"{CHART}\n{read}", "Let me look."),
        Say(["It is **7**", ".\x1b]52;c;ZXZpbA==\x07"]),
    ]
    code, out, err = run(
        environment, tmp_path, "--file", "orders.csv:/workspace/orders.csv", "What is the sum?", stdin=b"in euros"
    )
    assert code == 0, err
    assert out == "Let me look.\nIt is **7**.\x1b]52;c;ZXZpbA==\x07\n"  # a pipe gets what the model said, unchanged
    assert "chart: charts/chart-1.png" in err
    assert "\x1b" not in err
    assert (tmp_path / "charts" / "chart-1.png").read_bytes().startswith(b"\x89PNG")
    asked = service.requests[0]
    assert "What is the sum?\n\nin euros" in asked["messages"][1]["content"]
    assert "/workspace/orders.csv" in asked["messages"][1]["content"]
    assert {"run_python", "run_shell", "write_file"} <= {tool["function"]["name"] for tool in asked["tools"]}
    [answer] = tool_answers(service)
    assert "7" in answer
    assert "[chart-1.png" in answer  # a reference, not the picture
    assert ours(client) == []
    assert not (tmp_path / "data").exists()


def test_failures_of_the_service_are_sentences(
    environment: dict[str, str], service: ChatService, tmp_path: Path
) -> None:
    service.script = [Refuse(401, "bad key")]
    code, out, err = run(environment, tmp_path, "hello")
    assert (code, out) == (1, "")
    assert "OPENAI_API_KEY" in err
    assert "Traceback" not in err


def test_a_conversation_on_a_terminal(
    environment: dict[str, str], service: ChatService, client: cellbox.Client, tmp_path: Path
) -> None:
    """One conversation through all that can happen to it: answers, interruptions, a crash, a sandbox that dies."""
    terminal = Terminal(environment, tmp_path, "--workspace", "chat-test")
    try:
        terminal.expect("conversation 1.*\n>")

        # A tool is shown with its code and its output, the answer as Markdown, and nothing in it acts on the terminal.
        service.script = [run_python("x = 41\nprint('hello', x)"), Say(["# Done\n\nall *", "well*\x1b]0;evil\x07\n"])]
        terminal.enter("begin")
        shown = terminal.expect(r"all well[^>]*>")
        assert "● run_python" in shown
        assert "x = 41" in shown
        assert "hello 41" in shown
        assert "evil" not in shown
        [sandbox] = ours(client)

        # Ctrl-C stops the cell, not the program; its variables stay.
        service.script = [run_python("import time\nopen('/workspace/asleep', 'w').close()\ntime.sleep(600)")]
        terminal.enter("sleep")
        terminal.expect("time.sleep(.|\n)*Ctrl-C interrupts")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not sandbox.filesystem.exists("/workspace/asleep"):
            assert time.monotonic() < deadline
        terminal.type("\x03")
        terminal.expect(r"Interrupted\.\s*>")
        service.script = [run_python("x + 1"), Say(["fine"])]
        terminal.enter("and now?")
        terminal.expect(r"fine[^>]*>")
        assert "interrupted" in tool_answers(service)[-2]
        assert tool_answers(service)[-1] == "42"

        # Ctrl-C stops an answer too; what was said of it stays.
        service.script = [Say(["once upon"], holds=True)]
        terminal.enter("tell")
        terminal.expect("once upon")
        terminal.type("\x03")
        terminal.expect(r"Interrupted\.\s*>")

        # A failure of the service costs nothing that was said.
        service.script = [Refuse(400, "no room"), Say(["again"])]
        terminal.enter("more")
        terminal.expect(r"no room[^>]*>")
        terminal.enter("/retry")
        terminal.expect(r"again[^>]*>")
        assert [message["content"] for message in service.last_messages[-2:]] == [
            "once upon\n\n[The user interrupted this answer.]",
            "more",
        ]

        # The user's own commands.
        (tmp_path / "notes.txt").write_text("ours")
        terminal.enter("/put notes.txt")
        terminal.expect("to /workspace/notes.txt\\s*>")
        terminal.enter("/files")
        terminal.expect(r"4 B\s+/workspace/notes.txt\s*>")
        terminal.enter("/get notes.txt copy.txt")
        terminal.expect(r"to copy.txt\s*>")
        assert (tmp_path / "copy.txt").read_text() == "ours"
        terminal.enter("/save talk.md")
        terminal.expect(r"Saved as talk.md\s*>")
        assert "```python\nx + 1\n```" in (tmp_path / "talk.md").read_text()
        terminal.enter("/get nothing")
        terminal.expect(r"nothing[^>]*>")
        terminal.enter("/nonsense")
        terminal.expect(r"There is no /nonsense[^>]*>")

        # The program dies in the middle of a tool, and goes on where it stopped, in the same sandbox.
        service.script = [run_python("import time; time.sleep(600)")]
        terminal.enter("sleep again")
        terminal.expect("Ctrl-C interrupts")
        terminal.process.send_signal(signal.SIGKILL)
    finally:
        terminal.close()
    terminal = Terminal(environment, tmp_path)
    try:
        assert "sleep again" in terminal.expect(r"Going on where you stopped(.|\n)*/history[^>]*>")
        service.script = [run_python("x + 2"), Say(["still here"])]
        terminal.enter("are you there?")
        terminal.expect(r"still here[^>]*>")
        assert "how far it came is unknown" in tool_answers(service)[-2]
        assert tool_answers(service)[-1].endswith("43")
        assert "[Uploaded: /workspace/notes.txt, 4 bytes]" in str(service.last_messages)

        # Its sandbox ends, and the model is told that it got another.
        sandbox.kill()
        service.script = [run_python("open('notes.txt').read()"), Say(["fresh"])]
        terminal.enter("once more")
        terminal.expect(r"fresh[^>]*>")
        assert "fresh one" in tool_answers(service)[-1]
        assert tool_answers(service)[-1].endswith("'ours'")  # the workspace's files are still there
        [second] = ours(client)

        terminal.enter("/new")
        terminal.expect("conversation 2.*\n>")
        terminal.enter("/chats")
        terminal.expect(r"1\s+\w+ ago\s+begin\s*>")
        terminal.enter("/open 1")
        terminal.expect(r"fresh(.|\n)*/history[^>]*>")
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
        second.kill()
        client.workspaces.delete("chat-test")
    finally:
        terminal.close()
