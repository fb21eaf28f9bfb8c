"""Conversations are kept, are open in one program at a time, and can be found again."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellbox.chat.history import Conversation, History
from cellbox.chat.messages import Message, ToolCall
from cellbox.errors import ConfigurationError

SAID = [
    Message(role="user", content="what is\n 6 x 7?"),
    Message(role="assistant", tool_calls=[ToolCall(id="a", name="run_python", arguments='{"code": "6*7"}')]),
    Message(role="tool", content="42", tool_call_id="a"),
]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    opened = History(tmp_path)
    yield opened
    opened.close()


def begin(history: History) -> Conversation:
    return history.begin(model="m", template="code-interpreter", workspace="")


def test_what_was_said_is_there_again(history: History, tmp_path: Path) -> None:
    silent, conversation = begin(history), begin(history)
    for message in SAID:
        history.add(conversation, message)
    again = History(tmp_path)
    assert [one.title for one in again.list()] == ["what is 6 x 7?"]
    assert again.messages(conversation) == SAID
    assert again.messages(silent) == []
    again.clear(conversation)
    assert history.messages(conversation) == []
    again.close()
    assert tmp_path.joinpath("history.db").stat().st_mode & 0o077 == 0


def test_a_conversation_is_open_in_one_program_at_a_time(history: History, tmp_path: Path) -> None:
    conversation = begin(history)
    program = (
        "import sys; from pathlib import Path; from cellbox.chat.history import History; "
        f"print(History(Path(sys.argv[1])).open({conversation.number}) is not None)"
    )

    def opens_elsewhere() -> str:
        command = [sys.executable, "-c", program, tmp_path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert opens_elsewhere() == "False"
    history.close_conversation(conversation.number)
    assert opens_elsewhere() == "True"


def test_a_forgotten_conversation_is_gone(history: History) -> None:
    conversation = begin(history)
    history.add(conversation, SAID[0])
    history.forget(conversation)
    assert history.list() == []
    with pytest.raises(KeyError):
        history.open(conversation.number)


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "history.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ConfigurationError, match="newer version"):
        History(tmp_path)


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    tmp_path.joinpath("history.db").write_bytes(b"no database" * 100)
    with pytest.raises(ConfigurationError, match=r"history\.db"):
        History(tmp_path)
