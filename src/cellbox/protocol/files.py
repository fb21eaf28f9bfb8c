"""Files in a sandbox. Contents travel as raw bytes; these are the values around them."""

from __future__ import annotations

from typing import Annotated, Literal

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
    has_more: bool = False
    """In a listing with `limit`: there is more, after the last name of this page."""


class FileWritten(Value):
    path: str
    bytes: int


class MakeDirectory(RequestBody):
    path: str
    mode: Annotated[int, Meta(ge=0, le=0o7777)] = 0o755


class SetMode(RequestBody):
    path: str
    mode: Annotated[int, Meta(ge=0, le=0o7777)]
    recursive: bool = False
    """Also all that is below; links are left alone."""


class MoveFile(RequestBody):
    source: str
    target: str
    overwrite: bool = True


class Unpacked(Value):
    """What came of an archive."""

    path: str
    entries: int
    bytes: int
    """In files."""
    problems: list[str] = []
    """What was left out: devices and pipes."""


class WatchStarted(Value, tag="watching"):
    """From now on nothing is missed."""

    path: str


class FileChange(Value, tag="change"):
    """One thing that happened to a file. Changes of one file that follow each other closely are one."""

    kind: Literal["created", "modified", "attributes", "removed", "moved", "overflow"]
    """`overflow`: changes came faster than they were read and were dropped, so list the directory again."""
    path: str
    is_dir: bool = False
    target: str = ""
    """New path of what was `moved`."""


class WatchEnded(Value, tag="ended"):
    """What was watched is gone."""

    path: str


WatchEvent = WatchStarted | FileChange | WatchEnded
