"""Code contexts: persistent kernels, and the cells they run."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta

from cellbox.protocol.commands import StderrChunk, StdoutChunk, TimeoutSeconds
from cellbox.protocol.values import RequestBody, Value

DEFAULT_CELL_TIMEOUT_SECONDS = 30.0


class CreateContext(RequestBody):
    """Body of `create_context`."""

    language: str = "python"
    """`python` (or `py`, `python3`, empty), or any language that the template has a Jupyter kernelspec for."""
    cwd: str | None = None
    """Absolute. Default `/workspace`."""
    env: dict[str, str] = {}


class ContextInfo(Value):
    """One code context."""

    id: str
    sandbox_id: str
    language: str
    created_at: datetime
    session_id: str = ""
    """The same as `id`."""
    cells: int = 0
    is_busy: bool = False


class RunCode(RequestBody):
    """Body of `run_code` and `stream_code`."""

    code: str
    timeout_ms: Annotated[float, Meta(gt=0, le=86_400_000)] | None = None
    """Default 30,000. Counted from when the cell starts."""
    timeout_seconds: TimeoutSeconds | None = None
    """The same in seconds; wins over `timeout_ms`."""
    env: dict[str, str] = {}
    """For this cell only."""
    on_disconnect: Literal["interrupt", "detach"] = "interrupt"
    """What happens to the cell when the caller goes away before it is done."""


class ResultInfo(Value):
    """What is known of one result beside its representations."""

    is_main: bool = False
    """The value of the cell's last expression."""
    source: str = "display"
    omitted: dict[str, int] = {}
    """MIME type → bytes of representations that were over the cap."""
    chart: str = ""
    """JSON text that describes a matplotlib chart."""


CellOutcome = Literal["completed", "interrupted", "killed", "died"]


class ErrorInfo(Value):
    """What a cell raised, in parts."""

    name: str
    value: str
    traceback: str


class Execution(Value):
    """Everything that came of one cell."""

    stdout: str = ""
    stderr: str = ""
    results: list[dict[str, str]] = []
    """Rich outputs in order: MIME type → data. Images are base64; JSON types are JSON text."""
    error: str | None = None
    """The traceback, or a sentence when the cell was stopped; None when it ran to its end without error."""
    exit: int = 0
    duration_ms: float = 0
    execution_count: int = 0
    error_info: ErrorInfo | None = None
    result_info: list[ResultInfo] = []
    """Beside `results`, one for each."""
    outcome: CellOutcome = "completed"
    reason: str = ""
    state_kept: bool = True
    """False when the kernel had to be replaced: variables and imports are gone."""
    hint: str = ""
    """One sentence on what to do next, where the error is a common one."""
    stdout_dropped_bytes: int = 0
    stderr_dropped_bytes: int = 0
    dropped_results: int = 0
    late_stdout_bytes: int = 0
    """So many bytes at the head of `stdout` were printed by background work before this cell began."""
    late_stderr_bytes: int = 0


class CellDisplay(Value, tag_field="event", tag="display"):
    """One rich output."""

    data: dict[str, str]
    info: ResultInfo


class CellEnded(Value, tag_field="event", tag="done"):
    """The last event of a cell: an `Execution` without the outputs that were streamed before."""

    execution: Execution


CellEvent = StdoutChunk | StderrChunk | CellDisplay | CellEnded


class Interrupted(Value):
    was_busy: bool


class RunOnce(RequestBody):
    """Body of `run_once`: code without a context."""

    code: str
    language: str = "python"
    timeout_seconds: TimeoutSeconds | None = None


class RunOnceResult(Value):
    language: str
    stdout: str
    stderr: str
    exit_code: int
    duration_ms: float = 0
