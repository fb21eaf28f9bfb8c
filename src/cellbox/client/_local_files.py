"""Local files that are sent or received piece by piece."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

_CHUNK_BYTES = 256 * 1024


@contextmanager
def open_source(path: str | os.PathLike[str]) -> Generator[tuple[IO[bytes], int], None, None]:
    """Open a local file and say how long it is."""
    with Path(path).open("rb") as file:
        yield file, os.fstat(file.fileno()).st_size


def file_chunks(file: Any, size: int | None = None) -> Iterator[bytes]:
    """Yield the content of an open binary file, `size` bytes of it at most if that much was announced.

    Raises:
        TypeError: It was opened as text.
    """
    left = size
    while left is None or left > 0:
        chunk = file.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
        if isinstance(chunk, str):
            raise TypeError("Open the file in binary mode ('rb') to upload it")
        if not chunk:
            return
        if left is not None:
            left -= len(chunk)
        yield chunk


class AtomicFile:
    """A new file beside `path` that takes its place when the block ends well, and vanishes when it doesn't."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = Path()
        self._file: IO[bytes] | None = None

    def __enter__(self) -> IO[bytes]:
        # Through a link, as plain writing would go; a device or pipe can only be written, not replaced.
        self._path = Path(os.path.realpath(self._path))
        if self._path.exists() and not self._path.is_file():
            self._file = self._path.open("wb")
            return self._file
        self._temporary = self._path.with_name(f".{self._path.name[:100]}.{secrets.token_hex(8)}")
        # 0o666 before the umask, as a plain `open` has it.
        descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._file = os.fdopen(descriptor, "wb")
        return self._file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._file is not None
        temporary = self._temporary if self._temporary.name else None
        try:
            self._file.close()
            if temporary and kind is None:
                if self._path.exists():
                    temporary.chmod(self._path.stat().st_mode & 0o7777)
                temporary.replace(self._path)
                temporary = None
        finally:
            if temporary:
                temporary.unlink(missing_ok=True)
