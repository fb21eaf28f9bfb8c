"""Messages about files: part of `messages`, which exports all of it; import from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from cellbox.wire.answers import FileInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """Emit `FileOpened`, then send a regular file's bytes as DATA. Answer: `FileRead`."""

    op: ClassVar[str] = "file.read"
    path: str
    """Absolute. Bytes that are no UTF-8 travel as surrogate escapes, in all file operations and listings."""
    offset: int = 0
    length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile:
    """Write DATA to a file until EOF, making parent directories. Answer: `FileWritten`.

    Unless `append`, the bytes go to a temporary file in the same directory that replaces the old one at the end, so a
    reader sees the old content or the new, and a CANCEL or a lost connection leaves the old. Links are followed.
    """

    op: ClassVar[str] = "file.write"
    path: str
    append: bool = False
    mode: int | None = None
    """Permission bits; None keeps those of the file that is replaced, or 0o644 for a new one."""
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """Answer: `FileInfo`. The last component is not followed when it is a link."""

    op: ClassVar[str] = "file.stat"
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListDirectory:
    """Send the entries as `Entries` messages, sorted by name. Answer: `Listed`.

    `depth` > 1 descends, never through links.
    """

    op: ClassVar[str] = "file.list"
    path: str
    depth: int = 1
    limit: int | None = None
    """Send so many at most."""
    after: str = ""
    """Begin behind this name. For both, `depth` must be 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeDirectory:
    """Make a directory and its parents; one that exists is left exactly as it is. Answer: `Done`."""

    op: ClassVar[str] = "file.mkdir"
    path: str
    mode: int = 0o755


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Rename, across file systems too, making the target's parents. Answer: `Done`."""

    op: ClassVar[str] = "file.move"
    source: str
    target: str
    overwrite: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Remove a file, link or whole directory. Answer: `Done`."""

    op: ClassVar[str] = "file.remove"
    path: str
    recursive: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMode:
    """Change a file's permission bits; links are followed. Answer: `Done`."""

    op: ClassVar[str] = "file.chmod"
    path: str
    mode: int
    recursive: bool = False
    """Also all that is below, where links are left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFiles:
    """Send what changes as `FileChanges`, the first of them empty: from then on nothing is missed.

    Answer: `Done`, when what is watched is gone; CANCEL ends it otherwise.
    """

    op: ClassVar[str] = "file.watch"
    path: str
    recursive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Send a file, or a directory with all that is in it, as an archive in DATA. Answer: `Packed`."""

    op: ClassVar[str] = "file.pack"
    path: str
    format: str = "tar"
    """`tar`, `tar.gz` or `zip`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpack:
    """Unpack the archive that comes as DATA into a directory, which is made. Answer: `Unpacked`.

    Tar, tar.gz and zip are told apart by their first bytes. No entry is ever placed outside of the directory, nor
    through a link. What was unpacked before a failure stays.
    """

    op: ClassVar[str] = "file.unpack"
    path: str
    user: str = ""
    """Whose the files become, and whose rights are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """A part of a directory listing."""

    type: Literal["entries"] = "entries"
    entries: list[FileInfo]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOpened:
    """First event of `ReadFile`, before any DATA."""

    type: Literal["file_opened"] = "file_opened"
    size: int
    """Of the whole file now."""
    length: int
    """What will be sent unless the file shrinks meanwhile; -1 for pseudo files that do not know their size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One thing that happened to a file."""

    kind: Literal["created", "modified", "attributes", "removed", "moved", "overflow"]
    """`overflow`: changes came too fast and were dropped, so look at the tree again."""
    path: str
    is_directory: bool = False
    target: str = ""
    """New path of what was `moved`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChanges:
    """What changed, in order; repeated changes of one file are merged."""

    type: Literal["file_changes"] = "file_changes"
    changes: list[FileChange]
