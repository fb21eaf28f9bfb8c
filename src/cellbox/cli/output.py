"""Tables for people, JSON for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from cellbox.cli.terminal import escaped


def print_json(value: Any) -> None:
    """One JSON document. ASCII only, so that nothing in it can act on a terminal."""
    sys.stdout.write(json.dumps(msgspec.to_builtins(value), indent=2) + "\n")


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they must be. Cells may hold what a sandbox or another user chose: they are escaped."""
    cells = [[escaped(str(cell)) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in [list(headings), *cells]) for at in range(len(headings))]
    for row in [list(headings), *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """One name and value a line."""
    width = max((len(name) for name, _ in fields), default=0)
    for name, value in fields:
        print(f"{name.ljust(width)}  {escaped(str(value))}")


def say(text: str) -> None:
    """Tell the user something that is not the command's output."""
    sys.stderr.write(escaped(text) + "\n")
    sys.stderr.flush()


def age(moment: datetime) -> str:
    return duration((datetime.now(UTC) - moment).total_seconds())


def time_left(moment: datetime | None) -> str:
    return "never ends" if moment is None else duration((moment - datetime.now(UTC)).total_seconds())


def duration(seconds: float) -> str:
    """Short and rounded down: `42s`, `7m`, `3h`, `2d`."""
    seconds = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def yes_no(flag: bool) -> str:
    return "yes" if flag else "no"
