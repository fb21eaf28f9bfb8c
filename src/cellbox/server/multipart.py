"""Reads `multipart/form-data` as it arrives: small fields into memory, files straight to where they belong."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from email.message import Message
from typing import Protocol

from cellbox.errors import InvalidRequestError, TooLargeError

MAX_FIELD_BYTES = 256 * 1024
MAX_FIELDS = 64
MAX_FILES = 10_000
_MAX_HEADER_BYTES = 16 * 1024
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{1,70}")


class Sink(Protocol):
    """Where a file's bytes go; an open file is one."""

    def write(self, data: bytes, /) -> object: ...

    def close(self) -> None: ...


def form_boundary(content_type: bytes) -> bytes:
    """The boundary that a content type announces. Raises `InvalidRequestError`."""
    header = Message()
    header["content-type"] = content_type.decode("latin-1")
    boundary = header.get_boundary("")
    if not _BOUNDARY.fullmatch(boundary):
        raise InvalidRequestError("the multipart boundary is missing or malformed")
    return boundary.encode()


async def read_form(
    chunks: AsyncIterator[bytes], boundary: bytes, open_file: Callable[[str, str], Sink]
) -> dict[str, str]:
    """Read a form. `open_file` is given the names of a part's field and of its file, and says where the bytes go.

    Raises `InvalidRequestError` for anything but a well-formed form, and `TooLargeError`.
    """
    reader = _FormReader(boundary, open_file)
    try:
        async for chunk in chunks:
            reader.feed(chunk)
        return reader.end()
    finally:
        reader.close()


class _FormReader:
    """The state between two chunks: in front of a delimiter, in a part's headers, or in its body."""

    def __init__(self, boundary: bytes, open_file: Callable[[str, str], Sink]) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._open_file = open_file
        # The first delimiter has no line end before it; with this one all are alike.
        self._buffer = bytearray(b"\r\n")
        self._state = "preamble"
        self._name = ""
        self._field: bytearray | None = None
        self._file: Sink | None = None
        self._fields: dict[str, str] = {}
        self._files = 0

    def feed(self, chunk: bytes) -> None:
        self._buffer += chunk
        while self._step():
            pass

    def end(self) -> dict[str, str]:
        if self._state != "epilogue":
            raise InvalidRequestError("the form ends before its last boundary")
        return self._fields

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _step(self) -> bool:
        """Consume what can be; False when more bytes are needed."""
        match self._state:
            case "preamble" | "body":
                return self._until_delimiter()
            case "delimiter":
                return self._after_delimiter()
            case "headers":
                return self._headers()
            case _:
                self._buffer.clear()
                return False

    def _until_delimiter(self) -> bool:
        position = self._buffer.find(self._delimiter)
        if position < 0:
            ready = max(0, len(self._buffer) - len(self._delimiter) + 1)  # the rest may be a delimiter's beginning
            self._take(bytes(self._buffer[:ready]))
            del self._buffer[:ready]
            return False
        self._take(bytes(self._buffer[:position]))
        del self._buffer[: position + len(self._delimiter)]
        self._end_part()
        self._state = "delimiter"
        return True

    def _after_delimiter(self) -> bool:
        if len(self._buffer) < 2:
            return False
        if self._buffer.startswith(b"--"):
            self._state = "epilogue"
            return True
        end = self._buffer.find(b"\r\n")
        if end < 0 or self._buffer[:end].strip(b" \t"):
            if end < 0 and len(self._buffer) < 128:
                return False
            raise InvalidRequestError("malformed multipart boundary line")
        del self._buffer[:end]  # leaves the line end, so that a part without headers is found too
        self._state = "headers"
        return True

    def _headers(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or end > _MAX_HEADER_BYTES:
            if len(self._buffer) > _MAX_HEADER_BYTES:
                raise InvalidRequestError("the headers of a form part are too large")
            return False
        header = Message()
        for line in bytes(self._buffer[2:end]).split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-disposition":
                header["content-disposition"] = value.strip().decode("utf-8", "surrogateescape")
        del self._buffer[: end + 4]
        name = header.get_param("name", header="content-disposition")
        if not isinstance(name, str) or not name:
            raise InvalidRequestError("a form part has no name")
        self._begin_part(name, header.get_param("filename", header="content-disposition"))
        self._state = "body"
        return True

    def _begin_part(self, name: str, filename: str | tuple[str | None, str | None, str] | None) -> None:
        self._name = name
        if filename is not None:
            file = filename if isinstance(filename, str) else filename[2]  # RFC 2231: charset, language, text
            self._files += 1
            if self._files > MAX_FILES:
                raise TooLargeError(f"the form has more than {MAX_FILES} files")
            self._file = self._open_file(name, file)
        elif name in self._fields or len(self._fields) >= MAX_FIELDS:
            raise InvalidRequestError(f"field {name[:40]!r} is given twice, or there are too many fields")
        else:
            self._field = bytearray()

    def _take(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)
        elif self._field is not None:
            self._field += data
            if len(self._field) > MAX_FIELD_BYTES:
                raise TooLargeError(f"field {self._name[:40]!r} has more than {MAX_FIELD_BYTES} bytes")

    def _end_part(self) -> None:
        if self._field is not None:
            self._fields[self._name] = self._field.decode("utf-8", "replace")
            self._field = None
        self.close()
