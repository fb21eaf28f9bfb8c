"""Code contexts: kernels inside the sandbox, and the cells they run."""

from __future__ import annotations

import contextlib
import secrets
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import TypeVar

from cellbox import errors
from cellbox.control.commands import GRACE_SECONDS
from cellbox.control.guest import Guest
from cellbox.control.link import Call, Data, GuestLink
from cellbox.control.output import ClippedOutput, TextChunks
from cellbox.protocol import contexts as values
from cellbox.protocol.commands import StderrChunk, StdoutChunk
from cellbox.wire import messages
from cellbox.wire.frames import DataChannel

_ANSWER_SECONDS = 60.0  # for the guest to start, replace or end a kernel on a busy host
_QUEUE_SECONDS = 24 * 3600.0  # a cell may wait behind others; its own timeout counts from its start
_MAX_RESULTS, _MAX_RESULT_CHARACTERS = 5000, 64 * 1024 * 1024  # well over what an honest guest sends
_OutcomeT = TypeVar("_OutcomeT", bound=messages.Outcome)
_PYTHON_NAMES = frozenset({"", "py", "python", "python3", "ipython"})


class Contexts:
    """The code contexts of one sandbox. The guest holds the truth; here only creation times are remembered."""

    def __init__(self, guest: Guest, sandbox_id: str) -> None:
        self._guest = guest
        self._sandbox_id = sandbox_id
        self._created_at: dict[str, datetime] = {}

    async def create(self, body: values.CreateContext) -> values.ContextInfo:
        language = body.language.strip().lower()
        request = messages.CreateContext(
            context_id=secrets.token_hex(8),
            language="python" if language in _PYTHON_NAMES else language,
            cwd=body.cwd or "",
            env=body.env,
        )
        info = await self._ask(request, messages.ContextInfo)
        self._created_at[request.context_id] = datetime.now(UTC)
        return self._info(info)

    async def list(self) -> list[values.ContextInfo]:
        listed = await self._ask(messages.ListContexts(), messages.ContextList)
        return [self._info(info) for info in listed.contexts]

    async def close(self, context_id: str) -> None:
        await self._ask(messages.CloseContext(context_id=context_id), messages.Done)
        self._created_at.pop(context_id, None)

    async def interrupt(self, context_id: str) -> values.Interrupted:
        answer = await self._ask(messages.InterruptContext(context_id=context_id), messages.Interrupted)
        return values.Interrupted(was_busy=answer.was_busy)

    async def restart(self, context_id: str) -> values.ContextInfo:
        return self._info(await self._ask(messages.RestartContext(context_id=context_id), messages.ContextInfo))

    async def languages(self) -> list[str]:
        return (await self._ask(messages.ListLanguages(), messages.LanguageList)).languages

    async def run(self, context_id: str, body: values.RunCode) -> values.Execution:
        """Run a cell to its end. A cell that fails or is stopped is a result, not an error."""
        stdout, stderr = ClippedOutput(), ClippedOutput()
        results: list[dict[str, str]] = []
        infos: list[values.ResultInfo] = []
        late = messages.LateOutput()
        size = 0
        async with self._guest.use() as link, _running(link, context_id, body) as call:
            while (item := await call.receive()) is not None:
                if isinstance(item, Data):
                    (stderr if item.channel == DataChannel.STDERR else stdout).add(item.payload)
                elif isinstance(item, messages.Display):
                    results.append(item.bundle)
                    infos.append(_result_info(item))
                    size += len(item.chart) + sum(map(len, item.bundle.values()))
                    if size > _MAX_RESULT_CHARACTERS or len(results) > _MAX_RESULTS:
                        raise errors.GuestError("the guest sent more results than a cell may have")
                elif isinstance(item, messages.LateOutput):
                    late = item
            done = call.outcome(messages.CellDone)
        return _execution(done, body, stdout, stderr, results, infos, late)

    async def stream(self, context_id: str, body: values.RunCode) -> AsyncIterator[values.CellEvent]:
        """Yield what comes of a cell in order, `CellEnded` last. Closing the iterator interrupts the cell."""
        outputs = {DataChannel.STDOUT: _Output(StdoutChunk), DataChannel.STDERR: _Output(StderrChunk)}
        late = messages.LateOutput()
        async with self._guest.use() as link, _running(link, context_id, body) as call:
            while (item := await call.receive()) is not None:
                if isinstance(item, messages.Display):
                    yield values.CellDisplay(data=item.bundle, info=_result_info(item))
                elif isinstance(item, messages.LateOutput):
                    late = item
                    outputs[DataChannel.STDOUT].late, outputs[DataChannel.STDERR].late = late.stdout, late.stderr
                elif isinstance(item, Data):
                    channel = DataChannel.STDERR if item.channel == DataChannel.STDERR else DataChannel.STDOUT
                    for chunk in outputs[channel].feed(item.payload):
                        yield chunk
            done = call.outcome(messages.CellDone)
        for output in outputs.values():
            for chunk in output.end():
                yield chunk
        yield values.CellEnded(execution=_execution(done, body, ClippedOutput(), ClippedOutput(), [], [], late))

    async def _ask(self, request: messages.Request, expected: type[_OutcomeT]) -> _OutcomeT:
        async with self._guest.use() as link:
            return await link.ask(request, expected, timeout_seconds=_ANSWER_SECONDS)

    def _info(self, info: messages.ContextInfo) -> values.ContextInfo:
        return values.ContextInfo(
            id=info.context_id,
            session_id=info.context_id,
            sandbox_id=self._sandbox_id,
            language=info.language,
            created_at=self._created_at.setdefault(info.context_id, datetime.now(UTC)),
            cells=info.cells,
            is_busy=info.is_busy,
        )


class _Output:
    """One stream of a cell on its way into chunks: first what is late, then the cell's own."""

    def __init__(self, chunk: type[StdoutChunk | StderrChunk]) -> None:
        self._chunk = chunk
        self._text = TextChunks()
        self.late = 0
        """Bytes to come that were written before the cell began."""

    def feed(self, data: bytes) -> Iterator[StdoutChunk | StderrChunk]:
        if self.late > 0:
            data, own = data[: self.late], data[self.late :]
            self.late -= len(data)
            if text := self._text.feed(data):
                yield self._chunk(chunk=text, late=True)
            data = own
        if text := self._text.feed(data):
            yield self._chunk(chunk=text)

    def end(self) -> Iterator[StdoutChunk | StderrChunk]:
        if text := self._text.end():
            yield self._chunk(chunk=text)


def timeout_seconds(body: values.RunCode) -> float:
    """Return the deadline that applies to a cell."""
    if body.timeout_seconds is not None:
        return body.timeout_seconds
    return body.timeout_ms / 1000 if body.timeout_ms is not None else values.DEFAULT_CELL_TIMEOUT_SECONDS


@contextlib.asynccontextmanager
async def _running(link: GuestLink, context_id: str, body: values.RunCode) -> AsyncGenerator[Call]:
    limit = timeout_seconds(body)
    call = link.open(messages.RunCell(context_id=context_id, code=body.code, timeout_seconds=limit, env=body.env))
    call.expire_after(_QUEUE_SECONDS + limit + GRACE_SECONDS, "context.run")
    try:
        yield call
    finally:
        call.abandon()


def _result_info(display: messages.Display) -> values.ResultInfo:
    return values.ResultInfo(
        is_main=display.is_main, source=display.source, omitted=display.omitted, chart=display.chart
    )


def _execution(
    done: messages.CellDone,
    body: values.RunCode,
    stdout: ClippedOutput,
    stderr: ClippedOutput,
    results: list[dict[str, str]],
    infos: list[values.ResultInfo],
    late: messages.LateOutput,
) -> values.Execution:
    error = done.error
    return values.Execution(
        stdout=stdout.text(),
        stderr=stderr.text(),
        results=results,
        error=_error_text(done, body),
        exit=done.exit or (1 if error is not None or done.outcome != "completed" else 0),
        duration_ms=done.duration_ms,
        execution_count=done.execution_count,
        error_info=None
        if error is None
        else values.ErrorInfo(name=error.name, value=error.value, traceback=error.traceback),
        result_info=infos,
        outcome=done.outcome,
        reason=done.reason,
        state_kept=done.state_kept,
        hint=done.hint,
        stdout_dropped_bytes=stdout.dropped_bytes,
        stderr_dropped_bytes=stderr.dropped_bytes,
        dropped_results=done.dropped_displays,
        late_stdout_bytes=late.stdout,
        late_stderr_bytes=late.stderr,
    )


def _error_text(done: messages.CellDone, body: values.RunCode) -> str | None:
    """Return what a person or a model should read: the traceback, or why the cell did not run to its end."""
    if done.outcome == "completed":
        return done.error.traceback if done.error is not None else None
    kept = (
        "variables and imports are kept"
        if done.state_kept
        else "its kernel was replaced: variables and imports are gone"
    )
    if done.reason == "timeout":
        how = "interrupted" if done.outcome == "interrupted" else "killed, since it did not stop when interrupted"
        return f"cell timeout after {timeout_seconds(body):g}s: the cell was {how}; {kept}"
    if done.reason == "out_of_memory":
        return f"the cell was killed because the sandbox ran out of memory; {kept}"
    if done.outcome == "died":
        why = done.error.value if done.error is not None else _cause_of_death(done)
        return f"the kernel died while it ran the cell ({why}); {kept}"
    return f"the cell was {done.outcome} ({done.reason or 'on request'}); {kept}"


def _cause_of_death(done: messages.CellDone) -> str:
    number = done.exit - 128
    if done.reason != "signal" or number not in set(signal.Signals):
        return f"exit code {done.exit}"
    name = signal.Signals(number).name
    return f"{name}: native code crashed" if name in {"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"} else name
