"""What callers see of a journal, and the notebook that it becomes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from cellbox.client._notebook import notebook_of
from cellbox.protocol import journal as protocol
from cellbox.protocol.journal import CellEntry, CommandEntry, JournalEntry, ShellEntry


class Journal:
    """Every cell and command of a sandbox in the order they were begun, with what came of each.

    Iterate over it for the entries: `CellEntry`, `CommandEntry` and `ShellEntry`.
    """

    def __init__(self, pages: Iterable[protocol.Journal]) -> None:
        self._pages = list(pages)
        self.entries: list[JournalEntry] = [entry for page in self._pages for entry in page.entries]

    @property
    def sandbox_id(self) -> str:
        return self._pages[-1].sandbox_id

    @property
    def template(self) -> str:
        """What the sandbox was made from."""
        return self._pages[-1].template

    @property
    def created_at(self) -> datetime | None:
        return self._pages[-1].created_at

    @property
    def missing(self) -> int:
        """How many entries were not kept, since the journal was full."""
        return self._pages[-1].missing

    @property
    def cells(self) -> list[CellEntry]:
        return [entry for entry in self.entries if isinstance(entry, CellEntry)]

    @property
    def commands(self) -> list[CommandEntry]:
        return [entry for entry in self.entries if isinstance(entry, CommandEntry)]

    @property
    def shell_commands(self) -> list[ShellEntry]:
        """What was run in shells that keep their state."""
        return [entry for entry in self.entries if isinstance(entry, ShellEntry)]

    def to_notebook(self) -> dict[str, Any]:
        """The journal as a Jupyter notebook (nbformat 4.5) that runs again in a fresh sandbox.

        Python cells are code cells; commands are cells that begin with `%%bash`, those of a shell in the directory that
        it was in, but without its variables; cells in other languages are kept as raw text. Files that were uploaded
        are not in it.
        """
        return notebook_of(self.entries, sandbox_id=self.sandbox_id, template=self.template, missing=self.missing)

    def save(self, path: str | Path) -> Path:
        """Write it to a file: as a notebook where the name ends in `.ipynb`, else as JSON."""
        path = Path(path)
        document = self.to_notebook() if path.suffix == ".ipynb" else self.as_json()
        path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        return path

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        whole = msgspec.structs.replace(self._pages[-1], entries=self.entries, next_after=None)
        return msgspec.to_builtins(whole)

    def __iter__(self) -> Iterator[JournalEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"<Journal of {self.sandbox_id}: {len(self.cells)} cells, {len(self) - len(self.cells)} commands>"
