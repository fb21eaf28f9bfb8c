"""What a tool gives back to a model: structured, clipped, and with images left out."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from cellbox.client._results import Execution, Result
from cellbox.integrations.artifacts import SUFFIXES, Artifact, ArtifactStore
from cellbox.protocol.commands import CommandResult
from cellbox.protocol.values import Value

_PRINT_LESS = "print a summary, a shape or a slice instead of the whole"
_TEXT_FORMS = ("text/plain", "text/markdown", "text/latex", "text/html", "application/json")


class Limits(Value):
    """How much of each part of an answer a model is given, in characters."""

    stdout: int = 8000
    stderr: int = 4000
    error: int = 6000
    result: int = 6000
    file: int = 8000


class ToolAnswer(Value):
    """The answer to one call of a tool. `text` is for the model, the fields are for programs."""

    stdout: str = ""
    stderr: str = ""
    error: str = ""
    """The traceback, or a sentence; empty when all went well."""
    result: str = ""
    """The value of a cell's last expression and what it displayed, as text."""
    hint: str = ""
    """One sentence on what to do next."""
    exit_code: int | None = None
    """Of a command."""
    notices: list[str] = []
    """What else the model must know: a fresh sandbox, lost variables."""
    artifacts: list[Artifact] = []
    """Images and documents that came of it; their bytes are in the session's `ArtifactStore`."""
    shown: list[Artifact] = []
    """Images that the model asked to look at."""

    @property
    def is_error(self) -> bool:
        """Whether what the model asked for failed."""
        return bool(self.error)

    @property
    def text(self) -> str:
        """Everything, as a model should read it. Never empty."""
        sections = [*self.notices, self.stdout.rstrip("\n"), self.result.rstrip("\n")]
        sections += [artifact.reference() for artifact in self.artifacts]
        if self.stderr.strip():
            sections.append(f"stderr:\n{self.stderr.rstrip()}")
        if self.error:
            sections.append(f"Error:\n{self.error.rstrip()}")
        if self.exit_code:
            sections.append(f"[exit code {self.exit_code}]")
        if self.hint:
            sections.append(f"Hint: {self.hint}")
        return "\n".join(section for section in sections if section) or "(done; it printed nothing)"

    def structured(self) -> dict[str, Any]:
        """The fields that hold something, as plain data."""
        return msgspec.to_builtins({name: value for name in self.__struct_fields__ if (value := getattr(self, name))})


def clip(text: str, limit: int, *, head: float = 0.67, dropped_bytes: int = 0) -> str:
    """Cut the middle out of a long text, with a line that says how much is missing and what to do instead."""
    if len(text) <= limit:
        return text
    front = int(limit * head)
    back = limit - front
    earlier = f", after {dropped_bytes} bytes that the sandbox had dropped already" if dropped_bytes else ""
    notice = f"[… {len(text) - limit} of {len(text)} characters were left out here{earlier}: {_PRINT_LESS} …]"
    return f"{text[:front]}\n{notice}\n{text[len(text) - back :] if back else ''}"


def from_execution(execution: Execution, limits: Limits, artifacts: ArtifactStore) -> ToolAnswer:
    """Shape what came of a cell. Its images go to `artifacts`."""
    value = execution.value
    kept: list[Artifact] = []
    texts: list[str] = []
    for result in execution.results:
        artifact = _keep(result, artifacts)
        if artifact is not None:
            kept.append(artifact)
        elif (text := _text_of(result)) is not None:
            texts.append(text)
        texts += [f"[a result of {size} bytes ({mime}) was too large]" for mime, size in result.omitted.items()]
    hint = execution.hint
    if execution.timed_out:
        hint = "Look for an endless loop, work on less data, or ask for more time with timeout_seconds."
    notices: list[str] = []
    if not execution.state_kept:
        notices.append("The Python process was replaced: variables and imports are gone, files are still there.")
    if value.dropped_results:
        notices.append(f"{value.dropped_results} results were dropped: display fewer of them.")
    return ToolAnswer(
        stdout=clip(execution.stdout, limits.stdout, dropped_bytes=value.stdout_dropped_bytes),
        stderr=clip(execution.stderr, limits.stderr, dropped_bytes=value.stderr_dropped_bytes),
        error=clip(execution.error or "", limits.error, head=0.3),
        result=clip("\n".join(texts), limits.result),
        hint=hint,
        notices=notices,
        artifacts=kept,
    )


def from_command(result: CommandResult, limits: Limits, timeout_seconds: float) -> ToolAnswer:
    """Shape what came of a command. An exit code that isn't 0 is told, and no error of the tool."""
    error = hint = ""
    if result.reason in ("timeout", "idle_timeout"):
        error = (
            f"The command exceeded its limit of {timeout_seconds:g} seconds and was killed with everything it started."
        )
        hint = "Let it do less, or ask for more time with timeout_seconds."
    elif result.reason == "out_of_memory":
        error = "The command was killed because the sandbox ran out of memory."
        hint = "Work on less data at a time."
    elif result.reason == "cancelled":
        error = "The command was cancelled."
    return ToolAnswer(
        stdout=clip(result.stdout, limits.stdout, dropped_bytes=result.stdout_dropped_bytes),
        stderr=clip(result.stderr, limits.stderr, head=0.3, dropped_bytes=result.stderr_dropped_bytes),
        error=error,
        hint=hint,
        exit_code=result.exit_code,
    )


def _keep(result: Result, artifacts: ArtifactStore) -> Artifact | None:
    """Store the image of a result, if it has one that can be decoded."""
    for mime in SUFFIXES:
        content = result.data.get(mime)
        if content is None:
            continue
        if mime == "image/svg+xml":
            return artifacts.put(mime, content.encode())
        try:
            return artifacts.put(mime, base64.b64decode(content))
        except (binascii.Error, ValueError):
            continue
    return None


def _text_of(result: Result) -> str | None:
    return next((result.data[form] for form in _TEXT_FORMS if form in result.data), None)
