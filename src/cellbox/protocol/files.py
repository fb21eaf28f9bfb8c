"""Files in a sandbox. Contents travel as raw bytes; these are the values around them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from cellbox.protocol.values import RequestBody, Value


class FileInfo(Value):
    """One file, as `lstat` sees it: links are never followed here."""

    name: str
    path: str
    is_dir: bool
    size: int
    mode: str
    """One letter: `f`, `d`, `l`, or `o` for anything else."""
    mtime: int
    """Seconds since the epoch."""
    permissions: int = 0
    """Permission bits."""
    uid: int = 0
    gid: int = 0
    target: str = ""
    """Of a link."""


class DirectoryListing(Value):
    path: str
    entries: list[FileInfo]
    problems: list[str] = []
    """Subdirectories that could not be read."""


class FileWritten(Value):
    path: str
    bytes: int


class MakeDirectory(RequestBody):
    path: str
    mode: Annotated[int, Meta(ge=0, le=0o7777)] = 0o755


class MoveFile(RequestBody):
    source: str
    target: str
    overwrite: bool = True
