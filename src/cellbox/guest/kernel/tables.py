"""Keeps the tables of pandas to a size that somebody reads, where a script has lifted pandas' own limits.

`pd.set_option("display.max_rows", None)` and a frame of a million rows take minutes to render, only for the result to
be over every cap. So the number of cells is bounded before rendering; pandas shows head and tail with dots between.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from cellbox.guest.kernel import limits

MAX_CELLS = 20_000
"""About 700 KB of html where they hold numbers; where that is over `limits.MAX_TEXT`, fewer are shown."""
_ROW_CELLS = 2
"""What a row takes beside its cells, counted in cells."""
_FEW_CELLS = 1000
_MAX_COLUMNS = 500


def html(frame: Any) -> str | None:
    """Return the html of a DataFrame, with as many rows as its cap allows."""
    cells = MAX_CELLS
    while True:
        with _bounded(frame, frame.shape[1], cells):
            text: str | None = frame._repr_html_()
        if text is None or len(text) <= limits.MAX_TEXT or cells <= _FEW_CELLS:
            return text
        cells = max(cells * limits.MAX_TEXT // len(text) * 9 // 10, _FEW_CELLS)


def plain_frame(frame: Any, printer: Any, _cycle: bool) -> None:
    """Print a DataFrame."""
    with _bounded(frame, frame.shape[1]):
        printer.text(repr(frame))


def plain_series(series: Any, printer: Any, _cycle: bool) -> None:
    """Print a Series."""
    with _bounded(series, 1):
        printer.text(repr(series))


@contextlib.contextmanager
def _bounded(table: Any, columns: int, cells: int = MAX_CELLS) -> Iterator[None]:
    pandas = sys.modules["pandas"]
    rows, widest = pandas.get_option("display.max_rows"), pandas.get_option("display.max_columns")
    shown_columns = min(columns, widest or columns)
    shown_rows = min(len(table), rows or len(table))
    if shown_rows * (shown_columns + _ROW_CELLS) <= cells:
        yield
        return
    shown_columns = min(shown_columns, _MAX_COLUMNS)
    most = max(10, cells // (shown_columns + _ROW_CELLS))
    with pandas.option_context(
        "display.max_rows", most, "display.min_rows", most, "display.max_columns", shown_columns
    ):
        yield
