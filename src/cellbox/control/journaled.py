"""Commands, shells and contexts that note in the sandbox's journal what they run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

import msgspec

from cellbox.control.commands import Commands
from cellbox.control.contexts import Contexts
from cellbox.control.guest import Guest
from cellbox.control.journal import SandboxJournal
from cellbox.control.journal_file import MAX_TEXT_CHARACTERS
from cellbox.control.shells import Shells
from cellbox.protocol import contexts as values
from cellbox.protocol.commands import CommandEvent, CommandExited, CommandResult, RunCommand, StderrChunk, StdoutChunk
from cellbox.protocol.shells import RunInShell, ShellEvent, ShellOutput, ShellResult


class JournaledCommands(Commands):
    """The commands of one sandbox, each with an entry in its journal."""

    def __init__(self, guest: Guest, journal: SandboxJournal) -> None:
        super().__init__(guest)
        self._journal = journal

    async def run(self, body: RunCommand) -> CommandResult:
        started, result = time.time(), None
        try:
            result = await super().run(body)
            return result
        finally:
            self._journal.add_command(started, body, result)

    async def stream(self, body: RunCommand) -> AsyncIterator[CommandEvent]:
        started, result = time.time(), None
        stdout, stderr = _Kept(), _Kept()
        events = cast("AsyncGenerator[CommandEvent]", super().stream(body))
        try:
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, CommandExited):
                        result = CommandResult(
                            stdout=stdout.text(),
                            stderr=stderr.text(),
                            exit_code=event.exit_code,
                            duration_ms=event.duration_ms,
                            reason=event.reason,
                            stdout_dropped_bytes=stdout.dropped,
                            stderr_dropped_bytes=stderr.dropped,
                            survivors=event.survivors,
                        )
                    else:
                        (stderr if isinstance(event, StderrChunk) else stdout).add(event.chunk)
                    yield event
        finally:
            self._journal.add_command(started, body, result)


class JournaledShells(Shells):
    """The shells of one sandbox, each of their commands with an entry in its journal."""

    def __init__(self, guest: Guest, journal: SandboxJournal) -> None:
        super().__init__(guest)
        self._journal = journal

    async def run(self, shell_id: str, body: RunInShell) -> ShellResult:
        started, result = time.time(), None
        try:
            result = await super().run(shell_id, body)
            return result
        finally:
            self._journal.add_shell_command(started, shell_id, body.cmd, result)

    async def stream(self, shell_id: str, body: RunInShell) -> AsyncIterator[ShellEvent]:
        started, result, output = time.time(), None, _Kept()
        events = cast("AsyncGenerator[ShellEvent]", super().stream(shell_id, body))
        try:
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, ShellOutput):
                        output.add(event.chunk)
                    else:
                        result = ShellResult(
                            output=output.text(),
                            exit_code=event.exit_code,
                            cwd=event.cwd,
                            duration_ms=event.duration_ms,
                            reason=event.reason,
                            state_kept=event.state_kept,
                            dropped_bytes=output.dropped,
                            late_dropped_bytes=event.late_dropped_bytes,
                        )
                    yield event
        finally:
            self._journal.add_shell_command(started, shell_id, body.cmd, result)


class JournaledContexts(Contexts):
    """The code contexts of one sandbox, each cell with an entry in its journal."""

    def __init__(self, guest: Guest, sandbox_id: str, journal: SandboxJournal) -> None:
        super().__init__(guest, sandbox_id)
        self._journal = journal
        self._languages: dict[str, str] = {}

    async def create(self, body: values.CreateContext) -> values.ContextInfo:
        info = await super().create(body)
        self._languages[info.id] = info.language
        return info

    async def close(self, context_id: str) -> None:
        await super().close(context_id)
        self._languages.pop(context_id, None)

    async def run(self, context_id: str, body: values.RunCode) -> values.Execution:
        await self._learn(context_id)
        started, execution = time.time(), None
        try:
            execution = await super().run(context_id, body)
            return execution
        finally:
            self._note(started, context_id, body, execution)

    async def stream(self, context_id: str, body: values.RunCode) -> AsyncIterator[values.CellEvent]:
        await self._learn(context_id)
        started, execution = time.time(), None
        stdout, stderr, displays = _Kept(), _Kept(), list[values.CellDisplay]()
        room = MAX_TEXT_CHARACTERS * 16
        events = cast("AsyncGenerator[values.CellEvent]", super().stream(context_id, body))
        try:
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, StdoutChunk | StderrChunk):
                        (stderr if isinstance(event, StderrChunk) else stdout).add(event.chunk)
                    elif isinstance(event, values.CellDisplay):
                        room -= sum(map(len, event.data.values()))
                        displays.append(event if room >= 0 else values.CellDisplay(data={}, info=event.info))
                    else:
                        execution = msgspec.structs.replace(
                            event.execution,
                            stdout=stdout.text(),
                            stderr=stderr.text(),
                            results=[display.data for display in displays],
                            result_info=[display.info for display in displays],
                            stdout_dropped_bytes=stdout.dropped,
                            stderr_dropped_bytes=stderr.dropped,
                        )
                    yield event
        finally:
            self._note(started, context_id, body, execution)

    async def _learn(self, context_id: str) -> None:
        """Find out the language of a context that was made elsewhere: before a fork, a snapshot, another daemon."""
        if context_id not in self._languages:
            self._languages.update({info.id: info.language for info in await self.list()})

    def _note(self, started: float, context_id: str, body: values.RunCode, execution: values.Execution | None) -> None:
        self._journal.add_cell(started, context_id, self._languages.get(context_id, "python"), body.code, execution)


class _Kept:
    """The head and the tail of a stream of text, without copying any of it."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._room = self._tail_room = MAX_TEXT_CHARACTERS // 2
        self.dropped = 0

    def add(self, chunk: str) -> None:
        if self._room > 0:
            self._room -= len(chunk)
            self._head.append(chunk)
            return
        self._tail.append(chunk)
        self._tail_room -= len(chunk)
        while self._tail_room + len(self._tail[0]) < 0:
            gone = self._tail.popleft()
            self._tail_room += len(gone)
            self.dropped += len(gone)

    def text(self) -> str:
        notice = [f"\n[… {self.dropped} characters are not in the journal …]\n"] if self.dropped else []
        return "".join([*self._head, *notice, *self._tail])
