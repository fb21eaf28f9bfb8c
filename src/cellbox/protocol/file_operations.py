"""The HTTP operations on files, which are the same in a sandbox and in a workspace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from cellbox.protocol import files
from cellbox.protocol.operation import Operation

NoneType = type(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOperations:
    """All operations on the files of one kind of place."""

    read: Operation[None, bytes]
    write: Operation[bytes, files.FileWritten]
    remove: Operation[None, None]
    list: Operation[None, files.DirectoryListing]
    stat: Operation[None, files.FileInfo]
    make_directory: Operation[files.MakeDirectory, files.FileInfo]
    move: Operation[files.MoveFile, files.FileInfo]
    set_mode: Operation[files.SetMode, files.FileInfo]
    watch: Operation[None, None]
    pack: Operation[None, bytes]
    unpack: Operation[bytes, files.Unpacked]

    def all(self) -> Iterator[Operation[Any, Any]]:
        return (getattr(self, field.name) for field in fields(self))


def _declare(place: str, kind: str) -> FileOperations:
    """Declare them for paths below `place`; `kind` is put into their names."""
    return FileOperations(
        read=Operation(
            name=f"read_{kind}file",
            method="GET",
            path=f"{place}/fs",
            summary="Read a file; a single `Range` of bytes may be asked for.",
            body=NoneType,
            result=bytes,
            query=("path",),
        ),
        write=Operation(
            name=f"write_{kind}file",
            method="PUT",
            path=f"{place}/fs",
            summary="Write a file, atomically unless it is appended to; parent directories are made.",
            body=bytes,
            result=files.FileWritten,
            query=("path", "append", "mode", "user"),
        ),
        remove=Operation(
            name=f"remove_{kind}file",
            method="DELETE",
            path=f"{place}/fs",
            summary="Remove a file or a whole directory.",
            body=NoneType,
            result=NoneType,
            status=204,
            query=("path", "recursive"),
        ),
        list=Operation(
            name=f"list_{kind}directory",
            method="GET",
            path=f"{place}/fs/dir",
            summary="List a directory; `depth` > 1 descends. With `limit`, a page of it, after the name `after`.",
            body=NoneType,
            result=files.DirectoryListing,
            query=("path", "depth", "limit", "after"),
        ),
        stat=Operation(
            name=f"stat_{kind}file",
            method="GET",
            path=f"{place}/fs/stat",
            summary="Look at one file.",
            body=NoneType,
            result=files.FileInfo,
            query=("path",),
        ),
        make_directory=Operation(
            name=f"make_{kind}directory",
            method="POST",
            path=f"{place}/fs/mkdir",
            summary="Make a directory and its parents.",
            body=files.MakeDirectory,
            result=files.FileInfo,
            status=201,
        ),
        move=Operation(
            name=f"move_{kind}file",
            method="POST",
            path=f"{place}/fs/move",
            summary="Rename a file or directory.",
            body=files.MoveFile,
            result=files.FileInfo,
        ),
        set_mode=Operation(
            name=f"set_{kind}file_mode",
            method="POST",
            path=f"{place}/fs/chmod",
            summary="Change permission bits.",
            body=files.SetMode,
            result=files.FileInfo,
        ),
        watch=Operation(
            name=f"watch_{kind}files",
            method="GET",
            path=f"{place}/fs/watch",
            summary="Stream what changes at a path; with `recursive` also below its subdirectories.",
            body=NoneType,
            result=NoneType,
            query=("path", "recursive"),
            events=files.WatchEvent,
        ),
        pack=Operation(
            name=f"pack_{kind}files",
            method="GET",
            path=f"{place}/fs/archive",
            summary="Download a file or directory as an archive: `format` is `tar`, `tar.gz` or `zip`.",
            body=NoneType,
            result=bytes,
            query=("path", "format"),
        ),
        unpack=Operation(
            name=f"unpack_{kind}files",
            method="PUT",
            path=f"{place}/fs/archive",
            summary="Unpack a tar, tar.gz or zip archive into a directory, in place.",
            body=bytes,
            result=files.Unpacked,
            query=("path", "user"),
        ),
    )


SANDBOX_FILES = _declare("/sandboxes/{sandbox_id}", "")
WORKSPACE_FILES = _declare("/volumes/{name}", "workspace_")
