"""How a conversation looks: on a terminal with colours and live Markdown, anywhere else as plain text.

Everything here was written by a model or came out of a sandbox, so everything goes through the terminal's filter.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from markdown_it import MarkdownIt
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from cellbox.chat.agent import Observer
from cellbox.chat.messages import Message, ToolCall
from cellbox.chat.model import Finish, Waiting
from cellbox.cli.output import say
from cellbox.cli.terminal import Filter, GuestStream, escaped
from cellbox.integrations.answers import ToolAnswer

_MAX_SHOWN_LINES = 40
_CODE = {"run_python": ("code", "python"), "run_shell": ("command", "bash"), "write_file": ("content", "text")}
_FINISHES = {"length": "The answer was cut at the model's own limit.", "filtered": "The service withheld the rest."}


def printable(text: str) -> str:
    """The text without anything that acts on a terminal, colours among it."""
    return Text.from_ansi(Filter().feed(text)).plain


class Screen(Observer, Protocol):
    """Where a conversation is shown."""

    def note(self, text: str) -> None:
        """Something that is not part of the conversation."""
        ...

    def close(self) -> None:
        """Leave everything as it should be, whatever was going on."""
        ...


class PlainScreen:
    """The answer alone on standard output, as it comes; everything else as lines on standard error."""

    def __init__(self, charts: Path) -> None:
        self._charts = charts
        self._out = GuestStream(sys.stdout)
        self._last = "\n"

    def thinking(self) -> None:
        pass

    def text(self, piece: str) -> None:
        self._out.write(piece)
        self._last = piece[-1:] or self._last

    def reply_ended(self, finish: Finish | None) -> None:
        if self._last != "\n":
            self.text("\n")
        if finish in _FINISHES:
            say(_FINISHES[finish])

    def waiting(self, wait: Waiting) -> None:
        say(_waiting(wait))

    def tool_started(self, call: ToolCall) -> None:
        title, code, _ = described(call)
        first, _, rest = (code or title).strip().partition("\n")
        say(f"→ {call.name}: {first[:200]}{' …' if rest else ''}")

    def tool_ended(self, call: ToolCall, answer: ToolAnswer | None) -> None:
        del call
        if answer is None:
            return
        for notice in answer.notices:
            say(f"  {notice}")
        for artifact in answer.artifacts:
            say(f"chart: {self._charts / artifact.name}")
        if answer.error:
            say(f"  error: {answer.error.strip().splitlines()[-1][:500]}")

    def note(self, text: str) -> None:
        say(text)

    def close(self) -> None:
        self._out.close()


class TerminalScreen:
    """Markdown as it is written, code in colours, a sign of life while something runs."""

    def __init__(self, charts: Path, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._charts = charts
        self._filter = Filter()
        self._writing: _MarkdownStream | None = None
        self._status = self.console.status("")
        self._is_busy = False

    def text(self, piece: str) -> None:
        self._rest()
        if self._writing is None:
            self._writing = _MarkdownStream(self.console)
        self._writing.feed(self._filter.feed(piece))

    def reply_ended(self, finish: Finish | None) -> None:
        self._rest()
        if self._writing is not None:
            self._writing.close()
            self._writing = None
        self._filter = Filter()
        if finish in _FINISHES:
            self.note(_FINISHES[finish])

    def thinking(self) -> None:
        self._busy("thinking")

    def waiting(self, wait: Waiting) -> None:
        self._busy(_waiting(wait))

    def tool_started(self, call: ToolCall) -> None:
        self._rest()
        title, code, language = described(call)
        self.console.print(Text(f"● {call.name[:100]}", "bold cyan") + Text(f"  {title}".rstrip(), "cyan"))
        if code:
            self._show(
                Syntax(_shortened(code), language, theme="ansi_dark", background_color="default", word_wrap=True)
            )
        self._busy("running, Ctrl-C interrupts it")

    def tool_ended(self, call: ToolCall, answer: ToolAnswer | None) -> None:
        del call
        self._rest()
        if answer is None:
            return
        for text, style in (
            ("\n".join(answer.notices), "yellow"),
            (answer.stdout, "dim"),
            (answer.result, "default"),
            (answer.stderr, "yellow"),
            (answer.error, "red"),
            (f"exit code {answer.exit_code}" if answer.exit_code else "", "red"),
        ):
            if text.strip():
                self._show(Text(_shortened(printable(text).rstrip()), style))
        for artifact in answer.artifacts:
            self.note(f"chart: {self._charts / artifact.name}", style="green")

    def note(self, text: str, style: str = "dim") -> None:
        self._rest()
        self.console.print(Text(escaped(text), style), soft_wrap=True)

    def show(self, messages: Sequence[Message]) -> None:
        """Everything that was said and done, in order."""
        calls: dict[str, ToolCall] = {}
        for message in messages:
            calls |= {call.id: call for call in message.tool_calls}
            if message.role == "user":
                self.console.print(Text(f"> {printable(message.content)}", "bold"))
            elif message.role == "assistant":
                self.console.print(_markdown(message.content))
            elif message.tool_call_id in calls:
                call = calls[message.tool_call_id]
                self.tool_started(call)
                self.tool_ended(call, ToolAnswer(stdout=message.content))

    def listing(self, lines: Sequence[str]) -> None:
        """Lines of which each is shown on one."""
        self._rest()
        for line in lines:
            self.console.print(Text(escaped(line)), soft_wrap=True)

    def close(self) -> None:
        self.reply_ended(None)
        self._rest()

    def _show(self, what: RenderableType) -> None:
        self.console.print(Padding(what, (0, 0, 0, 2)))

    def _busy(self, text: str) -> None:
        self._rest()
        self._status.update(Text(escaped(text), "dim"))
        self._status.start()
        self._is_busy = True

    def _rest(self) -> None:
        if self._is_busy:
            self._is_busy = False
            self._status.stop()


class _MarkdownStream:
    """Markdown while it is being written: finished blocks are printed for good, the last one is redrawn."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._parser = MarkdownIt().enable("strikethrough").enable("table")
        self._tail = ""
        self._live = Live(console=console, transient=True, refresh_per_second=12, vertical_overflow="ellipsis")
        self._live.start()

    def feed(self, text: str) -> None:
        self._tail += text
        if "\n" in text:
            # What an unfinished line will be is not known yet, so it can't end the block before it.
            lines = self._tail[: self._tail.rfind("\n") + 1]
            starts = [token.map[0] for token in self._parser.parse(lines) if token.map and token.level == 0]
            if len(set(starts)) > 1:
                whole = self._tail.split("\n")
                self._console.print(_markdown("\n".join(whole[: starts[-1]])))
                self._tail = "\n".join(whole[starts[-1] :])
        self._live.update(_markdown(self._tail))

    def close(self) -> None:
        self._live.update("")
        self._live.stop()
        if self._tail.strip():
            self._console.print(_markdown(self._tail))


def described(call: ToolCall) -> tuple[str, str, str]:
    """A call for people: a title, its code if it has some, and the code's language. Nothing of it is trusted."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return printable(call.arguments)[:500], "", "text"
    field, language = _CODE.get(call.name, ("", "text"))
    code = arguments.pop(field, "")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    named = " ".join(f"{name}={value}" for name, value in arguments.items())  # pyright: ignore[reportUnknownVariableType]
    return printable(named).replace("\n", " ")[:500], printable(str(code)), language  # pyright: ignore[reportUnknownArgumentType]


def _shortened(text: str) -> str:
    lines = text.split("\n")
    if len(lines) <= _MAX_SHOWN_LINES:
        return text
    half = _MAX_SHOWN_LINES // 2
    cut = f"… {len(lines) - 2 * half} of {len(lines)} lines are not shown here …"
    return "\n".join([*lines[:half], cut, *lines[-half:]])


def _markdown(text: str) -> Markdown:
    # Without links that look like one address and lead to another.
    return Markdown(printable(text), code_theme="ansi_dark", hyperlinks=False)


def _waiting(wait: Waiting) -> str:
    return f"{wait.reason}. Asking again in {wait.seconds:.0f} s."
