"""The caps on what one cell may send, and what is done at each."""

from __future__ import annotations

from typing import Any

MAX_TEXT = 1024 * 1024
"""Per text representation. A model reads a thousandth of this, a notebook shows a hundredth; html tables fit."""
MAX_PLAIN = 64 * 1024
"""Per `text/plain`, which is what models read: about 16,000 tokens."""
MAX_BINARY = 8 * 1024 * 1024
"""Per image or JSON document, as sent (base64). A 4K screenshot is 5 MB."""
MAX_DISPLAYS = 1000
"""Per cell. Past that nobody looks; the count of what was left out is reported."""
MAX_DISPLAY_BYTES = 24 * 1024 * 1024
"""Per cell, over all displays; together with one message it stays below `wire.frames.MAX_MESSAGE_BYTES`."""
MAX_TRACEBACK = 32 * 1024
MAX_ERROR_VALUE = 8 * 1024
MAX_CHART = 256 * 1024
MAX_POINTS = 1000
"""Per series of a chart description."""


def cut_end(text: str, limit: int, advice: str = "") -> str:
    """Keep the beginning, and say how much is missing."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n… [{len(text) - limit:,} more characters left out{advice}]"


def cut_middle(text: str, limit: int) -> str:
    """Keep both ends, and say how much is missing between them."""
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head
    return f"{text[:head]}\n… [{len(text) - limit:,} characters left out] …\n{text[-tail:]}"


def short_string(value: Any) -> str | None:
    """Return the repr of an over-long str or bytes without making the whole of it; None when it is short enough."""
    size, room = len(value), MAX_PLAIN - 1000
    if size <= room:
        return None
    shown = room
    text = repr(value[:shown])
    if len(text) > MAX_PLAIN - 200:  # escapes take up to ten characters for one
        shown = room // 12
        text = repr(value[:shown])
    kind = "characters" if isinstance(value, str) else "bytes"
    return f"{text}\n… [{size - shown:,} more {kind} left out; print a slice to see them]"
