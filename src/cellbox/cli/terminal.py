"""What a sandbox prints must never drive the user's terminal.

A terminal obeys its input: escape sequences can set the clipboard (OSC 52), retitle the window, forge links (OSC 8),
make it answer as if the user had typed, or hide what was printed. `Filter` lets printable text and colours through and
nothing else. Where standard output is a pipe or a file, the text passes unchanged.
"""

from __future__ import annotations

import os
import re
import sys
from typing import BinaryIO, TextIO

_ESC = "\x1b"
_PLAIN = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
_PARAMETERS = re.compile(r"[0-9;:]{0,64}")
_C1_AS_ESCAPE = {"\x90": "P", "\x98": "X", "\x9b": "[", "\x9d": "]", "\x9e": "^", "\x9f": "_"}
_STRING_OPENERS = frozenset("PX]^_")
_STRING_ENDS = frozenset("\x07\x18\x1a\n\x9c")
_MAX_SEQUENCE = 4096
"""A sequence that never ends must not swallow the rest of the output."""
_RESET = "\x1b[0m"


class Filter:
    """Passes printable text, tabs, line ends and colours; drops every other control and escape sequence.

    Works on a stream in pieces: a sequence may begin in one piece and end in the next.
    """

    def __init__(self) -> None:
        self._state = "text"  # text | escape | intermediate | csi | string | string_escape
        self._sequence = ""
        self._coloured = False

    def feed(self, text: str) -> str:
        out: list[str] = []
        at = 0
        while at < len(text):
            if self._state == "text" and (plain := _PLAIN.match(text, at)):
                out.append(plain.group())
                at = plain.end()
            else:
                out.append(self._step(text[at]))
                at += 1
        return "".join(out)

    def finish(self) -> str:
        """What to print after the last piece: colours are reset, an unfinished sequence is dropped."""
        self._state, self._sequence = "text", ""
        coloured, self._coloured = self._coloured, False
        return _RESET if coloured else ""

    def _step(self, char: str) -> str:
        if char == _ESC and self._state != "string":
            self._state = "string_escape" if self._state == "string_escape" else "escape"
            return ""
        if self._state == "text":
            return self._control(char)
        if self._state == "escape":
            return self._after_escape(char)
        if self._state == "intermediate":
            if not " " <= char <= "/":
                self._state = "text"
            return ""
        if self._state == "csi":
            return self._in_csi(char)
        return self._in_string(char)

    def _control(self, char: str) -> str:
        if opener := _C1_AS_ESCAPE.get(char):
            return self._after_escape(opener)
        return escaped(char) if _BIDI.match(char) or "\ud800" <= char <= "\udfff" else ""

    def _after_escape(self, char: str) -> str:
        self._sequence = ""
        if char == "[":
            self._state = "csi"
        elif char in _STRING_OPENERS:
            self._state = "string"
        else:
            self._state = "intermediate" if " " <= char <= "/" else "text"
        return "\n" if char == "\n" else ""

    def _in_csi(self, char: str) -> str:
        if " " <= char <= "?" and len(self._sequence) < _MAX_SEQUENCE:
            self._sequence += char
            return ""
        self._state = "text"
        if char == "m" and _PARAMETERS.fullmatch(self._sequence) and not _conceals(self._sequence):
            self._coloured = self._sequence.strip("0;") != ""
            return f"{_ESC}[{self._sequence}m"
        return "\n" if char == "\n" else ""

    def _in_string(self, char: str) -> str:
        self._sequence += char
        if char == _ESC:
            self._state = "string_escape"
        elif self._state == "string_escape" or char in _STRING_ENDS or len(self._sequence) > _MAX_SEQUENCE:
            self._state = "text"
        return "\n" if char == "\n" else ""


def _conceals(parameters: str) -> bool:
    """Is one of these the code for invisible text? The 8 of `38;5;8` is only a colour's number."""
    codes = iter(re.split("[;]", parameters))
    for code in codes:
        if code in {"38", "48", "58"}:
            skip = {"5": 1, "2": 3}.get(next(codes, ""), 0)
            for _ in range(skip):
                next(codes, "")
        elif code.lstrip("0") == "8":
            return True
    return False


def escaped(text: str) -> str:
    """The text on one line with everything that is no printable character shown as an escape; for names in tables."""
    return "".join(
        char if char.isprintable() and not _BIDI.match(char) else char.encode("unicode_escape").decode()
        for char in text
    )


class GuestStream:
    """One of the user's streams (standard output or error), as seen by what a sandbox prints."""

    def __init__(self, stream: TextIO, *, raw: bool = False) -> None:
        self._stream = stream
        self._filter = None if raw or not stream.isatty() else Filter()

    def write(self, text: str) -> None:
        """Print at once."""
        self._put(text if self._filter is None else self._filter.feed(text))

    def write_bytes(self, data: bytes) -> None:
        """Print the bytes of a file: exact where no terminal reads them."""
        if self._filter is None:
            binary(self._stream).write(data)
            self._stream.flush()
        else:
            self.write(data.decode("utf-8", "replace"))

    def close(self) -> None:
        """After the last piece. The user's stream itself stays open."""
        if self._filter is not None:
            self._put(self._filter.finish())

    def _put(self, text: str) -> None:
        if text:
            target = binary(self._stream)
            target.write(text.encode("utf-8", "surrogateescape" if self._filter is None else "replace"))
            target.flush()


def binary(stream: TextIO) -> BinaryIO:
    """The bytes below a text stream, with what was written as text before already flushed."""
    stream.flush()
    return stream.buffer


def guest_output(*, raw: bool = False) -> tuple[GuestStream, GuestStream]:
    """Standard output and standard error for what a sandbox prints."""
    return GuestStream(sys.stdout, raw=raw), GuestStream(sys.stderr, raw=raw)


def debug_requested() -> bool:
    return os.environ.get("CELLBOX_DEBUG", "") not in {"", "0"}
