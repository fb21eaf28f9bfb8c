"""Code contexts: kernels whose variables last from one cell to the next."""

from __future__ import annotations

from collections.abc import Generator, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Literal, Self

from cellbox.client._sync._connection import Connection
from cellbox.client._sync._stream import EventStream
from cellbox.client._compat import notify, shielded
from cellbox.client._errors import partial_cell
from cellbox.client._results import Execution, ExecutionBuilder, Result, timed_out
from cellbox.client._timeouts import asked_seconds, cell_silence_seconds
from cellbox.errors import APIError, CellboxError, ContextNotFoundError, SandboxNotFoundError
from cellbox.protocol import operations
from cellbox.protocol.commands import StderrChunk, StdoutChunk
from cellbox.protocol.contexts import CellDisplay, CellEvent, ContextInfo, RunCode

OnDisconnect = Literal["interrupt", "detach"]
_CLEAN_UP_SECONDS = 10.0


class CodeContext:
    """One kernel in a sandbox: imports and variables of a cell are there in the next. Cells run one at a time.

    Comes from `Sandbox.create_code_context` or `Sandbox.contexts`. As a context manager it closes itself.
    """

    def __init__(self, connection: Connection, info: ContextInfo, sandbox_id: str) -> None:
        self._connection = connection
        self._info = info
        self._ids = {"sandbox_id": sandbox_id, "context_id": info.id}

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def language(self) -> str:
        return self._info.language

    @property
    def created_at(self) -> datetime:
        return self._info.created_at

    @property
    def info(self) -> ContextInfo:
        """The context as it was when this handle was made."""
        return self._info

    def run_code(
        self,
        code: str,
        *,
        timeout_seconds: float | None = 30,
        env: Mapping[str, str] | None = None,
        on_disconnect: OnDisconnect = "interrupt",
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_result: Callable[[Result], object] | None = None,
    ) -> Execution:
        """Run a cell and wait for what comes of it.

        A cell that raises, runs out of time or kills its kernel is no exception here: see `Execution.error`,
        `timed_out`, `state_kept`, or call `Execution.raise_for_error`.

        Args:
            timeout_seconds: From when the cell starts; cells before it in this context don't count. At the deadline it
                is interrupted, then killed. `None` stands for the longest the daemon allows, 24 hours.
            env: Environment variables for this cell only.
            on_disconnect: What becomes of the cell when this caller goes away first: `interrupt` it, or `detach` and
                let it run to its end, with its output lost.
            on_stdout: Gets each piece of output at once. With any of the three callbacks the cell is streamed, and its
                `Execution` holds all that was streamed, uncapped.
            on_stderr: The same for standard error.
            on_result: Gets each rich output at once.

        Raises:
            ContextNotFoundError: The context was closed.
            SandboxNotFoundError: The sandbox was killed or its time was up.
            ConnectionLostError: Whether the cell ran is unknown. It is never sent a second time.
        """
        body = _run_code(code, timeout_seconds, env, on_disconnect)
        if on_stdout or on_stderr or on_result:
            return self._run_streamed(body, on_stdout, on_stderr, on_result)
        try:
            value = self._connection.call(
                operations.run_code, body, timeout_seconds=self._silence(body), ids=self._ids
            )
        except APIError as error:
            partial = partial_cell(error)
            if partial is None:
                raise
            value = timed_out(partial)
        return Execution(value)

    def _run_streamed(
        self,
        body: RunCode,
        on_stdout: Callable[[str], object] | None,
        on_stderr: Callable[[str], object] | None,
        on_result: Callable[[Result], object] | None,
    ) -> Execution:
        builder = ExecutionBuilder()
        with EventStream(self._events(body)) as events:
            for event in events:
                if isinstance(event, StdoutChunk):
                    builder.add_stdout(event.chunk)
                    notify(on_stdout, event.chunk)
                elif isinstance(event, StderrChunk):
                    builder.add_stderr(event.chunk)
                    notify(on_stderr, event.chunk)
                elif isinstance(event, CellDisplay):
                    result = Result(event.data, event.info)
                    builder.add_result(result, event.info)
                    notify(on_result, result)
                else:
                    return builder.build(event.execution)
        raise AssertionError("a cell's stream ends with its last event or an exception")

    def stream(
        self,
        code: str,
        *,
        timeout_seconds: float | None = 30,
        env: Mapping[str, str] | None = None,
        on_disconnect: OnDisconnect = "interrupt",
    ) -> EventStream[CellEvent]:
        """Run a cell and iterate over its events: `StdoutChunk`, `StderrChunk`, `CellDisplay`, at last `CellEnded`.

        Leaving the iteration early interrupts the cell, unless it may `detach`. Arguments and errors are those of
        `run_code`.
        """
        return EventStream(self._events(_run_code(code, timeout_seconds, env, on_disconnect)))

    def _events(self, body: RunCode) -> Generator[CellEvent, None]:
        with self._connection.stream(
            operations.stream_code, body, timeout_seconds=self._silence(body), ids=self._ids
        ) as events:
            for event in events:
                yield event

    def _silence(self, body: RunCode) -> float:
        return cell_silence_seconds(body.timeout_seconds, self._connection.timeout_seconds)

    def interrupt(self) -> bool:
        """Interrupt the cell that runs now, as Ctrl-C would, and say whether there was one. Variables stay."""
        return (self._connection.call(operations.interrupt_context, ids=self._ids)).was_busy

    def restart(self) -> None:
        """Replace the kernel by a fresh one: variables and imports are gone, `id` and files stay."""
        self._info = self._connection.call(operations.restart_context, ids=self._ids)

    def close(self) -> None:
        """End the context. One that is gone already is fine."""
        with suppress(ContextNotFoundError, SandboxNotFoundError):
            self._connection.call(operations.close_context, ids=self._ids)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with shielded(_CLEAN_UP_SECONDS):
            try:
                self.close()
            except CellboxError:
                if error is None:
                    raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.language}>"


def _run_code(
    code: str, timeout_seconds: float | None, env: Mapping[str, str] | None, on_disconnect: OnDisconnect
) -> RunCode:
    return RunCode(
        code=code, timeout_seconds=asked_seconds(timeout_seconds), env=dict(env or {}), on_disconnect=on_disconnect
    )

# Generated from _async/_context.py by tools/unasync.py: edit that, and run it again.
