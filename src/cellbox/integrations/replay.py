"""Runs a notebook again in a sandbox and compares what comes of it with what the notebook says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from cellbox.client._notebook import notebook_of
from cellbox.client._sync._context import CodeContext
from cellbox.client._sync._sandbox import Sandbox
from cellbox.errors import CellboxError
from cellbox.protocol.journal import CellEntry

_ADDRESSES = re.compile(r"\bat 0x[0-9a-f]{6,16}\b")
_EXIT_STATUS = re.compile(r"exit status \d+")
_SHOWN_CHARACTERS = 2000


class NotebookError(CellboxError):
    """The file is no notebook, or of a kind that can't be run; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One kind of output of one cell that came out otherwise."""

    cell: int
    """Which code cell of the notebook, counted from 1."""
    output: str
    """`stdout`, `stderr`, `error`, or the MIME type of a result."""
    recorded: str
    replayed: str


@dataclass(slots=True, kw_only=True)
class Replay:
    """What came of running a notebook again."""

    cells: int = 0
    """Code cells that were run."""
    differences: list[Difference] = field(default_factory=list[Difference])

    @property
    def is_same(self) -> bool:
        return not self.differences


def read_notebook(path: Path) -> dict[str, Any]:
    """Read a notebook file.

    Raises:
        NotebookError: It is no notebook of nbformat 4 in Python.
        OSError: It can't be read.
    """
    try:
        notebook: Any = json.loads(path.read_bytes())
    except ValueError as error:
        raise NotebookError(f"{path} is no notebook: {error}") from error
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):  # pyright: ignore[reportUnknownMemberType]
        raise NotebookError(f"{path} is no notebook: it has no cells")
    document = cast("dict[str, Any]", notebook)
    if document.get("nbformat") != 4:
        raise NotebookError(f"{path} is a notebook of format {document.get('nbformat')!r}; only 4 can be run")
    language = document.get("metadata", {}).get("kernelspec", {}).get("language", "python")
    if language != "python":
        raise NotebookError(f"{path} is a notebook in {language}; only Python can be run")
    return document


def replay(notebook: dict[str, Any], sandbox: Sandbox, *, timeout_seconds: float = 300) -> Replay:
    """Run all code cells of a notebook in a fresh context of a sandbox, and compare.

    Compared are what was printed, the text of results, and whether and how a cell failed; of images only that there is
    one, since two renderings differ in bytes that nobody sees. Addresses of objects count as equal.
    """
    found = Replay()
    with sandbox.create_code_context() as context:
        for source, recorded in _code_cells(notebook):
            found.cells += 1
            found.differences += _compare(found.cells, recorded, _run(context, source, timeout_seconds))
    return found


def _code_cells(notebook: dict[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    for cell in notebook["cells"]:
        if cell.get("cell_type") == "code" and (source := _joined(cell.get("source", ""))).strip():
            yield source, _outcome(cell.get("outputs", []))


def _run(context: CodeContext, source: str, timeout_seconds: float) -> dict[str, str]:
    execution = context.run_code(source, timeout_seconds=timeout_seconds)
    entry = CellEntry(
        number=1,
        started_at=context.created_at,
        context_id=context.id,
        language="python",
        code=source,
        execution=execution.value,
    )
    cell = notebook_of([entry], sandbox_id="", template="", missing=0)["cells"][-1]
    return _outcome(cell["outputs"])


def _outcome(outputs: list[dict[str, Any]]) -> dict[str, str]:
    """Outputs by kind, with what differs from run to run taken out."""
    parts: dict[str, str] = {}

    def add(kind: str, text: str) -> None:
        parts[kind] = parts.get(kind, "") + _ADDRESSES.sub("at 0x…", text)

    for output in outputs:
        kind = output.get("output_type")
        if kind == "stream":
            add(str(output.get("name", "stdout")), _joined(output.get("text", "")))
        elif kind == "error":
            value = str(output.get("evalue"))
            status = _EXIT_STATUS.search(value)  # how a command failed; the rest of the sentence names it
            add("error", f"{output.get('ename')}: {status[0] if status else value}")
        else:
            data: dict[str, Any] = output.get("data", {})
            images = sorted(mime for mime in data if mime.startswith("image/"))
            for mime in images:
                add(mime, "an image\n")
            if "text/plain" in data and not images:
                add("text/plain", _joined(data["text/plain"]) + "\n")
    return parts


def _compare(cell: int, recorded: dict[str, str], replayed: dict[str, str]) -> Iterator[Difference]:
    for kind in sorted(recorded.keys() | replayed.keys()):
        before, after = recorded.get(kind, ""), replayed.get(kind, "")
        if before.rstrip() != after.rstrip():
            yield Difference(cell=cell, output=kind, recorded=_shown(before), replayed=_shown(after))


def _joined(text: Any) -> str:
    """The format allows a list of lines in place of a text."""
    return "".join(cast("list[str]", text)) if isinstance(text, list) else str(text)


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}… ({len(text)} characters)"
