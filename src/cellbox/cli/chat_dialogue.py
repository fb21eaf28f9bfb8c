"""The dialogue on a terminal: what the user types goes to the model, or, after a `/`, to a command."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory

from cellbox.chat.history import Conversation, History
from cellbox.chat.messages import Message
from cellbox.chat.model import Model
from cellbox.chat.scripted_model import QUESTION, ScriptedModel
from cellbox.chat.talk import Talk, TalkOptions
from cellbox.cli.chat_screen import TerminalScreen, described
from cellbox.cli.exits import Exit, meaning
from cellbox.cli.output import duration, size
from cellbox.errors import CellboxError

_COMMAND = re.compile(r"/[a-z]+")
_HELP = {
    "/history": "show this conversation from its beginning",
    "/chats": "list your conversations",
    "/open NUMBER": "go on with another conversation",
    "/new": "begin a conversation, with a sandbox of its own",
    "/clear": "forget what was said here; sandbox and files stay",
    "/retry": "let the model try again after a failure",
    "/files [DIRECTORY]": "list the sandbox's files",
    "/get REMOTE [LOCAL]": "fetch a file from the sandbox",
    "/put LOCAL [REMOTE]": "copy a file into the sandbox",
    "/save [FILE]": "write this conversation to a Markdown file",
    "/help": "show this",
    "/exit": "leave; so does Ctrl-D",
}


class Dialogue:
    """Reads, answers, and goes on until the user leaves."""

    def __init__(
        self,
        runner: asyncio.Runner,
        history: History,
        model: Model,
        options: TalkOptions,
        *,
        inputs: Path,
    ) -> None:
        self._runner = runner
        self._history = history
        self._model = model
        self._options = options
        self._screen = TerminalScreen(options.charts)
        self._talk: Talk | None = None
        self._commands: dict[str, Callable[[list[str]], None]] = {
            "/history": self._show_history,
            "/chats": self._list_chats,
            "/open": self._open,
            "/new": self._new,
            "/clear": self._clear,
            "/retry": self._retry,
            "/files": self._files,
            "/get": self._get,
            "/put": self._put,
            "/save": self._save,
            "/help": self._help,
        }
        self._prompt: PromptSession[str] = PromptSession(
            history=FileHistory(str(inputs)),
            completer=WordCompleter([*self._commands, "/exit"], sentence=True),
            complete_while_typing=False,
        )

    def run(self, conversation: Conversation, uploads: Sequence[tuple[Path, str]]) -> int:
        """Talk until the user leaves; returns the exit code."""
        try:
            self._begin(conversation)
            with self._telling():
                for local, remote in uploads:
                    self._runner.run(self._upload(local, remote))
            if isinstance(self._model, ScriptedModel):
                self._screen.show([Message(role="user", content=QUESTION)])
                self._take(QUESTION)
            while (line := self._read()) is not None:
                if line:
                    self._take(line)
            return Exit.OK
        finally:
            self._leave()

    @property
    def _open_talk(self) -> Talk:
        assert self._talk is not None
        return self._talk

    def _begin(self, conversation: Conversation) -> None:
        talk = Talk(conversation, self._history, self._model, self._screen, self._options)
        try:
            talk.check()
        except BaseException:
            self._runner.run(talk.aclose())
            raise
        self._talk = talk
        self._screen.note(
            f"cellbox chat · {self._model.name} · {conversation.template} · conversation {conversation.number} · "
            "/help shows what there is"
        )
        if messages := talk.agent.messages:
            self._screen.note(f"Going on where you stopped {duration(time.time() - conversation.used_at)} ago:")
            last = max((at for at, message in enumerate(messages) if message.role == "user"), default=0)
            self._screen.show(messages[last:])
            self._screen.note("/history shows all of it, /new begins another.")

    def _leave(self) -> None:
        self._screen.close()
        talk, self._talk = self._talk, None
        if talk is None:
            return
        if self._options.is_kept and talk.agent.messages:
            number, ttl = talk.conversation.number, duration(self._options.ttl_seconds)
            self._screen.note(f"Conversation {number} is kept, its sandbox for {ttl}: `cellbox chat` goes on here.")
        self._runner.run(talk.aclose(keep=self._options.is_kept))

    def _read(self) -> str | None:
        """The next line; empty when the user thought better of it, None at the end."""
        try:
            line = self._prompt.prompt("> ").strip()
        except KeyboardInterrupt:
            self._screen.note("Ctrl-D or /exit leaves.")
            return ""
        except EOFError:
            return None
        return None if line in {"/exit", "/quit"} else line

    def _take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        command = self._commands.get(word)
        with self._telling():
            if command is not None:
                try:
                    command(shlex.split(rest))
                except ValueError:
                    self._screen.note(f"That makes no sense; /help shows how {word} is written.")
            elif _COMMAND.fullmatch(word):
                self._screen.note(f"There is no {word}; /help shows what there is.")
            else:
                self._go_on(self._open_talk.answer(line))

    @contextmanager
    def _telling(self) -> Generator[None, None, None]:
        """Let nothing that goes wrong, nor Ctrl-C, end the dialogue."""
        try:
            try:
                yield
            finally:
                self._screen.close()
        except KeyboardInterrupt:
            self._screen.note("Interrupted.")
        except CellboxError as error:
            _, advice = meaning(error)
            self._screen.note(f"{error}. {advice}" if advice else str(error), style="red")
        except OSError as error:
            self._screen.note(f"That failed: {error}", style="red")

    def _go_on(self, answering: Coroutine[Any, Any, bool]) -> None:
        if not self._runner.run(answering):
            self._screen.note("The model asked for tools very often. Say `go on` if it should.")

    def _help(self, words: list[str]) -> None:
        del words
        width = max(map(len, _HELP))
        self._screen.listing([f"{name.ljust(width)}  {text}" for name, text in _HELP.items()])

    def _show_history(self, words: list[str]) -> None:
        del words
        self._screen.show(self._open_talk.agent.messages)

    def _list_chats(self, words: list[str]) -> None:
        del words
        now = time.time()
        self._screen.listing(
            [f"{one.number:4}  {duration(now - one.used_at):>4} ago  {one.title}" for one in self._history.list()]
        )

    def _open(self, words: list[str]) -> None:
        [number] = map(int, words)
        if number == self._open_talk.conversation.number:
            return
        try:
            conversation = self._history.open(number)
        except KeyError:
            self._screen.note(f"There is no conversation {number}; /chats lists them.")
            return
        if conversation is None:
            self._screen.note(f"Conversation {number} is open in another program.")
            return
        self._change(conversation)

    def _new(self, words: list[str]) -> None:
        del words
        now = self._open_talk.conversation
        self._change(self._history.begin(model=self._model.name, template=now.template, workspace=now.workspace))

    def _change(self, conversation: Conversation) -> None:
        before = self._open_talk
        self._begin(conversation)
        self._runner.run(before.aclose(keep=self._options.is_kept))

    def _clear(self, words: list[str]) -> None:
        del words
        self._open_talk.clear()
        self._screen.note("What was said is forgotten. The sandbox and its files are as they were.")

    def _retry(self, words: list[str]) -> None:
        del words
        messages = self._open_talk.agent.messages
        if not messages or (messages[-1].role == "assistant" and not messages[-1].tool_calls):
            self._screen.note("There is nothing to try again.")
            return
        self._go_on(self._open_talk.agent.go_on())

    def _files(self, words: list[str]) -> None:
        path = words[0] if words else "/workspace"
        self._runner.run(self._list_files(path))

    async def _list_files(self, path: str) -> None:
        entries = await (await self._open_talk.sandbox()).filesystem.list(_absolute(path))
        self._screen.listing(
            [f"{'' if entry.is_dir else size(entry.size):>10}  {entry.path}{'/' * entry.is_dir}" for entry in entries]
        )
        if not entries:
            self._screen.note(f"{path} is empty.")

    def _get(self, words: list[str]) -> None:
        remote, *rest = words
        [local] = rest or [PurePosixPath(remote).name]
        self._runner.run(self._download(_absolute(remote), Path(local)))

    async def _download(self, remote: str, local: Path) -> None:
        if local.is_dir():
            local /= PurePosixPath(remote).name
        count = await (await self._open_talk.sandbox()).filesystem.download(remote, local)
        self._screen.note(f"{size(count)} to {local}")

    def _put(self, words: list[str]) -> None:
        local, *rest = words
        [remote] = rest or [Path(local).name]
        self._runner.run(self._upload(Path(local), _absolute(remote)))

    async def _upload(self, local: Path, remote: str) -> None:
        written = await self._open_talk.upload(local, remote)
        self._screen.note(f"{size(written.bytes)} to {written.path}")

    def _save(self, words: list[str]) -> None:
        talk = self._open_talk
        [name] = words or [f"chat-{talk.conversation.number}.md"]
        with Path(name).open("x", encoding="utf-8") as file:
            file.write(as_markdown(talk.agent.messages))
        self._screen.note(f"Saved as {name}")


def as_markdown(messages: Sequence[Message]) -> str:
    """A conversation as a document."""
    parts: list[str] = []
    for message in messages:
        if message.role == "user":
            parts.append(f"## {message.content}")
        elif message.role == "tool":
            parts.append(_fenced(message.content, "text"))
        else:
            parts.append(message.content)
            for call in message.tool_calls:
                title, code, language = described(call)
                parts.append(f"*{call.name}* {title}".rstrip())
                parts.append(_fenced(code, language) if code else "")
    return "\n\n".join(part for part in parts if part) + "\n"


def _fenced(text: str, language: str) -> str:
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"/workspace/{path}"
