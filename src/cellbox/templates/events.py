"""What a build tells while it runs: steps that start, log, end well or fail. The CLI prints them, HTTP streams them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from cellbox.errors import TemplateBuildError

_TAIL_LINES = 40
_LINE_CHARACTERS = 2000

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    template: str
    step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLog:
    template: str
    step: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    template: str
    step: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed:
    """Always followed by a `TemplateBuildError` from the iterator, so that nobody can take a failure for success."""

    template: str
    step: str
    seconds: float
    reason: str
    exit_code: int | None
    log_tail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildDone:
    """The last event of a build that succeeded."""

    template: str
    digest: str
    seconds: float
    was_built: bool
    """False when the same content was there already."""


BuildEvent = StepStarted | StepLog | StepDone | StepFailed | BuildDone


class StepError(Exception):
    """A step went wrong in a way that its log explains."""

    def __init__(self, reason: str, exit_code: int | None = None) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


class Step:
    """A step in progress; whoever does the work logs here."""

    def __init__(self, progress: Progress, name: str) -> None:
        self.name = name
        self._progress = progress
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def log(self, line: str) -> None:
        line = line.rstrip("\r\n")[:_LINE_CHARACTERS]
        self._tail.append(line)
        self._progress.emit(StepLog(template=self._progress.template, step=self.name, line=line))

    @property
    def log_tail(self) -> str:
        return "\n".join(self._tail)


class Progress:
    """Where the steps of one template's build report to."""

    def __init__(self, template: str, emit: Callable[[BuildEvent], None]) -> None:
        self.template = template
        self.emit = emit

    @asynccontextmanager
    async def step(self, name: str) -> AsyncGenerator[Step]:
        """Announce a step, time it, and turn whatever goes wrong in it into a `TemplateBuildError` with its log."""
        step, started = Step(self, name), time.monotonic()
        self.emit(StepStarted(template=self.template, step=name))
        try:
            yield step
        except (StepError, OSError) as error:
            exit_code = error.exit_code if isinstance(error, StepError) else None
            self.emit(
                StepFailed(
                    template=self.template, step=name, seconds=time.monotonic() - started, reason=str(error),
                    exit_code=exit_code, log_tail=step.log_tail,
                )
            )  # fmt: skip
            raise TemplateBuildError(
                f"template {self.template!r}, step {name!r}: {error}",
                details={"template": self.template, "step": name, "exit_code": exit_code, "log_tail": step.log_tail},
            ) from error
        self.emit(StepDone(template=self.template, step=name, seconds=time.monotonic() - started))


async def stream(work: Callable[[Callable[[BuildEvent], None]], Awaitable[None]]) -> AsyncIterator[BuildEvent]:
    """Run `work`, yielding the events it emits; its exception comes last. Closing the iterator cancels the work."""
    queue: asyncio.Queue[BuildEvent | None] = asyncio.Queue()

    async def run() -> None:
        try:
            await work(queue.put_nowait)
        finally:
            queue.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        while (event := await queue.get()) is not None:
            yield event
        await task
    finally:
        task.cancel()
        with suppress(BaseException):
            await task
