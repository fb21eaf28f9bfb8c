"""What callers see of a cell: `Execution` and its `Result`s, views over the protocol's values."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from cellbox.client._codec import decode_json
from cellbox.errors import CodeFailedError
from cellbox.protocol import contexts
from cellbox.protocol.contexts import CellOutcome, ErrorInfo, ResultInfo

_SUFFIXES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".pdf": "application/pdf",
    ".svg": "image/svg+xml",
}
_BINARY = {"image/png", "image/jpeg", "application/pdf"}
_BEST_FIRST = ("image/png", "image/svg+xml", "image/jpeg", "application/pdf")


def _is_json(mime: str) -> bool:
    return mime == "application/json" or mime.endswith("+json")


class Result:
    """One rich output of a cell: the same thing in one or more representations.

    Each accessor gives one representation, or `None` where the cell produced none of that kind. `data` has all.
    """

    __slots__ = ("_info", "data")

    def __init__(self, data: dict[str, str], info: ResultInfo | None = None) -> None:
        self.data = data
        """MIME type → content. Images and PDF are base64; JSON types are JSON text."""
        self._info = info or ResultInfo()

    @property
    def text(self) -> str | None:
        """The plain-text form: what a Python prompt would show."""
        return self.data.get("text/plain")

    @property
    def html(self) -> str | None:
        """HTML: for a DataFrame, its table."""
        return self.data.get("text/html")

    @property
    def markdown(self) -> str | None:
        return self.data.get("text/markdown")

    @property
    def latex(self) -> str | None:
        return self.data.get("text/latex")

    @property
    def javascript(self) -> str | None:
        return self.data.get("application/javascript")

    @property
    def png(self) -> str | None:
        """A PNG image as base64 text; `save` writes it to a file."""
        return self.data.get("image/png")

    @property
    def jpeg(self) -> str | None:
        """A JPEG image as base64 text."""
        return self.data.get("image/jpeg")

    @property
    def svg(self) -> str | None:
        return self.data.get("image/svg+xml")

    @property
    def pdf(self) -> str | None:
        """A PDF document as base64 text."""
        return self.data.get("application/pdf")

    @property
    def json(self) -> Any:
        """The JSON representation, decoded; as text where it is no valid JSON."""
        return self._decoded("application/json")

    @property
    def plotly(self) -> Any:
        """A plotly figure as its decoded JSON document."""
        return self._decoded("application/vnd.plotly.v1+json")

    @property
    def chart(self) -> dict[str, Any] | None:
        """What a matplotlib chart shows (its kind, titles, axes and data), as a dictionary."""
        try:
            return decode_json(self._info.chart, dict[str, Any]) if self._info.chart else None
        except (ValueError, msgspec.DecodeError):
            return None

    @property
    def is_main(self) -> bool:
        """Whether this is the value of the cell's last expression."""
        return self._info.is_main

    @property
    def source(self) -> str:
        """Where it came from, such as `display`."""
        return self._info.source

    @property
    def omitted(self) -> dict[str, int]:
        """MIME type → bytes of representations that were too large to send."""
        return self._info.omitted

    def save(self, path: str | Path) -> Path:
        """Write the image or document to a local file and return its path.

        A suffix of `.png`, `.jpg`, `.svg` or `.pdf` picks that representation; any other gets the best there is.

        Raises:
            ValueError: There is no such representation.
            OSError: The file can't be written.
        """
        path = Path(path)
        wanted = _SUFFIXES.get(path.suffix.lower())
        mime = wanted or next((mime for mime in _BEST_FIRST if mime in self.data), None)
        if mime is None or mime not in self.data:
            have = ", ".join(self.data) or "nothing"
            raise ValueError(f"This result has no {wanted or 'image'} to save, only {have}")
        content = self.data[mime]
        path.write_bytes(base64.b64decode(content) if mime in _BINARY else content.encode())
        return path

    def _decoded(self, mime: str) -> Any:
        text = self.data.get(mime)
        if text is None:
            return None
        try:
            return json.loads(text)
        except ValueError:
            return text

    def _repr_mimebundle_(self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None) -> Any:
        """Lets a notebook show the result as the sandbox's own would."""
        keep = set(include) if include else set(self.data)
        keep -= set(exclude or ())
        return {mime: self._decoded(mime) if _is_json(mime) else self.data[mime] for mime in self.data if mime in keep}

    def __str__(self) -> str:
        for mime in ("text/plain", "text/markdown", "text/html", "application/json"):
            if mime in self.data:
                return self.data[mime]
        return f"<{', '.join(self.data)}>"

    def __repr__(self) -> str:
        return f"<Result {', '.join(self.data)}>"


class Execution:
    """Everything that came of one cell. A cell that raised is a result like any other: look at `error`."""

    def __init__(self, value: contexts.Execution) -> None:
        self._value = value

    @property
    def stdout(self) -> str:
        """What it printed. Long output keeps its head and tail, with a line that says what was cut."""
        return self._value.stdout

    @property
    def stderr(self) -> str:
        return self._value.stderr

    @property
    def logs(self) -> dict[str, str]:
        """`stdout` and `stderr` under these names."""
        return {"stdout": self.stdout, "stderr": self.stderr}

    @cached_property
    def results(self) -> list[Result]:
        """Rich outputs, in order."""
        infos = self._value.result_info
        return [
            Result(data, infos[index] if index < len(infos) else None) for index, data in enumerate(self._value.results)
        ]

    @property
    def text(self) -> str | None:
        """The plain-text form of the last expression's value, else of the first result that has one."""
        main = next((result for result in self.results if result.is_main and result.text is not None), None)
        return main.text if main else next((result.text for result in self.results if result.text is not None), None)

    @property
    def png(self) -> str | None:
        """The first PNG image, as base64 text. Keep it out of a model's context."""
        return next((result.png for result in self.results if result.png is not None), None)

    @property
    def error(self) -> str | None:
        """The traceback, or a sentence when the cell was stopped; `None` when it ran to its end without error."""
        return self._value.error

    @property
    def error_info(self) -> ErrorInfo | None:
        """What it raised, in parts: `name`, `value`, `traceback`."""
        return self._value.error_info

    @property
    def hint(self) -> str:
        """One sentence on what to do next, where the error is a common one; else empty."""
        return self._value.hint

    @property
    def exit(self) -> int:
        """0, or 1 after an error, or the code of a `SystemExit`."""
        return self._value.exit

    @property
    def exit_code(self) -> int:
        """The same as `exit`."""
        return self._value.exit

    @property
    def outcome(self) -> CellOutcome:
        """`completed` (with or without error), `interrupted`, `killed` or `died`."""
        return self._value.outcome

    @property
    def reason(self) -> str:
        """Why it did not complete, such as `timeout`; else empty."""
        return self._value.reason

    @property
    def timed_out(self) -> bool:
        """Whether its time was up."""
        return self._value.reason == "timeout"

    @property
    def state_kept(self) -> bool:
        """False when the kernel had to be replaced: variables and imports are gone."""
        return self._value.state_kept

    @property
    def duration_ms(self) -> float:
        return self._value.duration_ms

    @property
    def execution_count(self) -> int:
        """The number that a notebook would show in `In [n]`."""
        return self._value.execution_count

    @property
    def value(self) -> contexts.Execution:
        """The answer as it came over the wire, with counts of what was dropped."""
        return self._value

    def raise_for_error(self) -> None:
        """Do nothing after a cell without error.

        Raises:
            CodeFailedError: The cell raised, was stopped or ran out of time; `execution` is this object.
        """
        if self.error is not None or self.outcome != "completed":
            summary = self.error or f"The cell was {self.outcome}"
            raise CodeFailedError(summary, self)

    def __str__(self) -> str:
        return "\n".join(part.rstrip("\n") for part in (self.stdout, self.text, self.stderr, self.error) if part)

    def __repr__(self) -> str:
        failed = f" error={self.error_info.name if self.error_info else self.error!r}" if self.error else ""
        return f"<Execution {self.outcome}{failed} results={len(self.results)} stdout={len(self.stdout)} chars>"


class ExecutionBuilder:
    """Collects the events of a streamed cell into one `Execution`, in linear time."""

    def __init__(self) -> None:
        self._stdout: list[str] = []
        self._stderr: list[str] = []
        self._results: list[dict[str, str]] = []
        self._infos: list[ResultInfo] = []

    def add_stdout(self, text: str) -> None:
        self._stdout.append(text)

    def add_stderr(self, text: str) -> None:
        self._stderr.append(text)

    def add_result(self, result: Result, info: ResultInfo) -> None:
        self._results.append(result.data)
        self._infos.append(info)

    def build(self, end: contexts.Execution) -> Execution:
        """Join what was streamed with what the last event said."""
        return Execution(
            msgspec.structs.replace(
                end,
                stdout="".join(self._stdout),
                stderr="".join(self._stderr),
                results=self._results,
                result_info=self._infos,
            )
        )


def timed_out(execution: contexts.Execution) -> contexts.Execution:
    """The partial outcome of a cell whose time was up, marked as such whatever the daemon filled in."""
    return execution if execution.reason else msgspec.structs.replace(execution, reason="timeout")
