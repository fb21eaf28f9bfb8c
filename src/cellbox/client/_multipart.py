"""A recipe folder as multipart form data, in constant memory."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from cellbox.errors import InvalidRequestError

RECIPE_FILE = "recipe.toml"
_CHUNK_BYTES = 256 * 1024


class RecipeForm:
    """The body of a template build: fields, then every file of the folder, named by its path inside."""

    def __init__(self, folder: str | Path, fields: dict[str, str]) -> None:
        self._folder = Path(folder)
        self._fields = fields
        self._files = _files(self._folder)
        self._boundary = secrets.token_hex(16)

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return ((b"Content-Type", f"multipart/form-data; boundary={self._boundary}".encode()),)

    def chunks(self) -> Iterator[bytes]:
        """Yield the body piece by piece."""
        for name, value in self._fields.items():
            yield self._part(f'name="{name}"') + value.encode() + b"\r\n"
        for path in self._files:
            name = path.relative_to(self._folder).as_posix()
            yield self._part(
                f'name="{_quoted(name)}"; filename="{_quoted(name)}"', "Content-Type: application/octet-stream\r\n"
            )
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    yield chunk
            yield b"\r\n"
        yield f"--{self._boundary}--\r\n".encode()

    def _part(self, disposition: str, more: str = "") -> bytes:
        return f"--{self._boundary}\r\nContent-Disposition: form-data; {disposition}\r\n{more}\r\n".encode()


def _quoted(name: str) -> str:
    """As browsers write it."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _files(folder: Path) -> list[Path]:
    if not (folder / RECIPE_FILE).is_file():
        raise InvalidRequestError(f"{folder} has no {RECIPE_FILE}: that is what says how to build the template")
    found: list[Path] = []
    for directory, subdirectories, names in os.walk(folder):
        subdirectories.sort()
        for name in sorted(names):
            path = Path(directory, name)
            if not stat.S_ISREG(path.lstat().st_mode):
                raise InvalidRequestError(f"{path} is no regular file; a recipe folder holds nothing else")
            found.append(path)
    return found
