"""Exceptions as text for a model: plain, with the cell's own lines and numbers, and short enough to read."""

from __future__ import annotations

import os
import re
import traceback
from types import TracebackType

from cellbox.guest.kernel import limits

CELL_PREFIX = "<cell "
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_IPYTHON = re.compile(r"/(site|dist)-packages/IPython/(core|lib|utils)/")
_OWN_DIRECTORY = os.path.dirname(os.path.abspath(__file__))


def describe(error: BaseException) -> dict[str, str]:
    """Return the fields of a `CellError`. Never raises, whatever the exception's own methods do."""
    return {
        "name": type(error).__name__,
        "value": limits.cut_middle(plain(_message(error)), limits.MAX_ERROR_VALUE),
        "traceback": limits.cut_middle(plain(_format(error)), limits.MAX_TRACEBACK),
    }


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"<message not available: {type(broken).__name__} in __str__>"


def _format(error: BaseException) -> str:
    _hide_machinery(error, set())
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:
        return f"{type(error).__name__}: {_message(error)}\n"


def _hide_machinery(error: BaseException | None, seen: set[int]) -> None:
    """Drop IPython's frames and ours from the traceback, its causes and its group members."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    try:
        if isinstance(error, SyntaxError) and _is_from_compiler(error):
            error.__traceback__ = None
        else:
            error.__traceback__ = _user_frames(error.__traceback__)
    except Exception:
        return
    _hide_machinery(error.__cause__, seen)
    _hide_machinery(error.__context__, seen)
    for member in getattr(error, "exceptions", ()) if isinstance(error, BaseExceptionGroup) else ():
        _hide_machinery(member, seen)


def _is_from_compiler(error: SyntaxError) -> bool:
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is None or _is_machinery(last.tb_frame.f_code.co_filename)


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        if not _is_machinery(trace.tb_frame.f_code.co_filename):
            kept.append(trace)
        trace = trace.tb_next
    rebuilt: TracebackType | None = None
    for entry in reversed(kept):
        rebuilt = TracebackType(rebuilt, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rebuilt


def _is_machinery(filename: str) -> bool:
    return (
        filename.startswith(_OWN_DIRECTORY)
        or filename.endswith(("codeop.py", "/bdb.py"))
        or _IPYTHON.search(filename) is not None
    )


def plain(text: str) -> str:
    """Return text without colour codes."""
    return _ANSI.sub("", text)
