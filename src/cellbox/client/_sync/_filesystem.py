"""Files of a sandbox or of a workspace."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import IO, Any, Literal

from cellbox.client._sync._connection import Connection
from cellbox.client._sync._watch import FileWatch
from cellbox.client._codec import Query, RemotePath, decode_answer, remote_path
from cellbox.client._compat import Source as Source
from cellbox.client._compat import chunks
from cellbox.client._local_files import AtomicFile, file_chunks, open_source
from cellbox.errors import PathConflictError, PathNotFoundError
from cellbox.protocol.file_operations import FileOperations
from cellbox.protocol.files import FileInfo, FileWritten, MakeDirectory, MoveFile, SetMode, Unpacked

ArchiveFormat = Literal["tar", "tar.gz", "zip"]
LocalSource = str | PathLike[str] | IO[bytes] | Source

_OCTETS = (b"Content-Type", b"application/octet-stream")


class Filesystem:
    """Files of one sandbox or workspace, in its own view.

    Paths are absolute (of a workspace, from its top), as `str`, `bytes` or `PurePosixPath`. A name that is no UTF-8 is
    given as `bytes`, and comes back in a `str` with surrogate escapes, as `os.listdir` has it.

    Raises (all methods):
        PathNotFoundError: No such file or directory; also a `FileNotFoundError`.
        PathConflictError: A directory where a file is needed, or the reverse; also an `OSError`.
        PermissionDeniedError: The file's permissions forbid it to `user`.
        StorageFullError: The sandbox's disk is full.
        SandboxNotFoundError: The sandbox is gone.
    """

    _home = "/workspace"
    """What is listed when nothing is named."""

    def __init__(self, connection: Connection, operations: FileOperations, ids: Mapping[str, str]) -> None:
        self._connection = connection
        self._operations = operations
        self._ids = ids

    def read(self, path: RemotePath, *, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file, or `length` bytes of it from `offset` on; past its end there are none.

        For large files, `download` and `iter_bytes` need no memory.
        """
        if length == 0:
            return b""
        return b"".join([chunk for chunk in self._read(path, offset, length)])

    def read_text(self, path: RemotePath, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Read a text file.

        Raises:
            UnicodeDecodeError: It is not in `encoding`; `errors="replace"` reads it all the same.
        """
        return (self.read(path)).decode(encoding, errors)

    def iter_bytes(self, path: RemotePath) -> Generator[bytes, None]:
        """Yield a file's content piece by piece."""
        for chunk in self._read(path, 0, None):
            yield chunk

    def _read(self, path: RemotePath, offset: int, length: int | None) -> Generator[bytes, None]:
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if offset or length is not None:
            end = "" if length is None else str(offset + length - 1)
            headers = ((b"Range", f"bytes={offset}-{end}".encode()),)
        with self._connection.open(
            self._operations.read,
            query=[("path", remote_path(path))],
            headers=headers,
            allow_status=416 if headers else None,
            ids=self._ids,
        ) as response:
            if response.status == 416:
                return
            # A server without ranges answers with the whole file.
            skip = offset if headers and response.status == 200 else 0
            left = length if skip or (headers and response.status == 200) else None
            for chunk in response.iter_stream():
                piece = chunk[skip:]
                skip -= len(chunk) - len(piece)
                if left is not None:
                    piece = piece[:left]
                    left -= len(piece)
                if piece:
                    yield piece

    def write(
        self, path: RemotePath, content: str | bytes, *, mode: int | None = None, user: str | None = None
    ) -> FileWritten:
        """Write a whole file: readers see the old content or the new, never a part. Parent directories are made.

        Args:
            content: Text is written as UTF-8.
            mode: Permission bits, such as `0o755`. By default those of the file that is replaced, else `0o644`.
            user: Who is to own it and whose permissions count. Default root.
        """
        return self._write(path, _as_bytes(content), (), mode, user, append=False)

    def append(self, path: RemotePath, content: str | bytes, *, user: str | None = None) -> FileWritten:
        """Add to the end of a file, which is made if there is none."""
        return self._write(path, _as_bytes(content), (), None, user, append=True)

    def upload(
        self, source: LocalSource, path: RemotePath, *, mode: int | None = None, user: str | None = None
    ) -> FileWritten:
        """Copy a local file, an open binary file or an iterable of `bytes` to a file in the sandbox.

        Needs no memory for the content. If the source fails midway, nothing is written.

        Raises:
            OSError: The local file can't be read.
        """
        if isinstance(source, (str, PathLike)):
            with open_source(source) as (file, size):
                length = (b"Content-Length", str(size).encode())
                return self._write(
                    path, chunks(file_chunks(file, size)), (length,), mode, user, append=False
                )
        pieces: Any = file_chunks(source) if hasattr(source, "read") else source
        return self._write(path, chunks(pieces), (), mode, user, append=False)

    def _write(
        self,
        path: RemotePath,
        content: bytes | Iterable[bytes],
        headers: tuple[tuple[bytes, bytes], ...],
        mode: int | None,
        user: str | None,
        *,
        append: bool,
    ) -> FileWritten:
        query: Query = [
            ("path", remote_path(path)),
            ("append", True if append else None),
            ("mode", None if mode is None else f"{mode:o}"),
            ("user", user),
        ]
        with self._connection.open(
            self._operations.write, content, query=query, headers=(_OCTETS, *headers), ids=self._ids
        ) as response:
            return decode_answer(self._operations.write, response.status, "", response.read())

    def download(self, path: RemotePath, target: str | PathLike[str] | IO[bytes]) -> int:
        """Copy a file of the sandbox to a local file or an open binary file, and return its size in bytes.

        Needs no memory for the content. A local file appears whole or not at all.

        Raises:
            OSError: The local file can't be written.
        """
        if not isinstance(target, (str, PathLike)):
            return self._copy(path, target)
        with AtomicFile(Path(target)) as file:
            return self._copy(path, file)

    def _copy(self, path: RemotePath, file: IO[bytes]) -> int:
        size = 0
        for chunk in self._read(path, 0, None):
            file.write(chunk)
            size += len(chunk)
        return size

    def list(self, path: RemotePath = "", *, depth: int = 1) -> list[FileInfo]:
        """List a directory, by default `/workspace` or the top of a workspace.

        With `depth` > 1 also what lies in its subdirectories; links are not followed.
        """
        query: Query = [("path", remote_path(path or self._home)), ("depth", depth if depth != 1 else None)]
        listing = self._connection.call(self._operations.list, query=query, ids=self._ids)
        return listing.entries

    def listdir(self, path: RemotePath = "/") -> list[FileInfo]:
        """The same as `list`, by its other name."""
        return self.list(path)

    def iter_directory(self, path: RemotePath, *, page: int = 10_000) -> Generator[FileInfo, None]:
        """Yield a directory's entries in order of names, asked for `page` at a time: for directories of any size."""
        after: str | None = None
        while True:
            query: Query = [("path", remote_path(path)), ("limit", page), ("after", after)]
            listing = self._connection.call(self._operations.list, query=query, ids=self._ids)
            for entry in listing.entries:
                yield entry
            if not listing.has_more or not listing.entries:
                return
            after = listing.entries[-1].name

    def walk(self, path: RemotePath = "") -> Iterator[tuple[str, list[FileInfo], list[FileInfo]]]:
        """Yield `(directory, subdirectories, files)` from the top down, as `os.walk` does.

        Remove entries from `subdirectories` to leave them out. Directories that vanish meanwhile are left out too.
        """
        pending = [remote_path(path or self._home)]
        is_top = True
        while pending:
            directory = pending.pop()
            try:
                entries = self.list(directory)
            except (PathNotFoundError, PathConflictError):
                if is_top:
                    raise
                continue
            is_top = False
            subdirectories = [entry for entry in entries if entry.is_dir]
            yield directory, subdirectories, [entry for entry in entries if not entry.is_dir]
            pending += [f"{directory.rstrip('/')}/{entry.name}" for entry in reversed(subdirectories)]

    def stat(self, path: RemotePath) -> FileInfo:
        """Look at one file. A link is reported as itself."""
        query: Query = [("path", remote_path(path))]
        return self._connection.call(self._operations.stat, query=query, ids=self._ids)

    def exists(self, path: RemotePath) -> bool:
        """Whether there is something of this name."""
        try:
            self.stat(path)
        except PathNotFoundError:
            return False
        return True

    def mkdir(self, path: RemotePath, *, mode: int = 0o755) -> FileInfo:
        """Make a directory and its parents. One that is there already is fine."""
        body = MakeDirectory(path=remote_path(path), mode=mode)
        return self._connection.call(self._operations.make_directory, body, ids=self._ids)

    def move(self, source: RemotePath, target: RemotePath, *, overwrite: bool = True) -> FileInfo:
        """Rename a file or directory.

        Args:
            overwrite: Without it, a `target` that exists is a `PathConflictError`.
        """
        body = MoveFile(source=remote_path(source), target=remote_path(target), overwrite=overwrite)
        return self._connection.call(self._operations.move, body, ids=self._ids)

    def chmod(self, path: RemotePath, mode: int, *, recursive: bool = False) -> FileInfo:
        """Change the permission bits of a file, or of a directory and all that is in it; links are followed once."""
        body = SetMode(path=remote_path(path), mode=mode, recursive=recursive)
        return self._connection.call(self._operations.set_mode, body, ids=self._ids)

    def watch(self, path: RemotePath, *, recursive: bool = False) -> FileWatch:
        """Iterate over what changes at a path, with `recursive` also below its subdirectories.

        With `with`, whatever changes inside the block is told; a bare iteration begins when it is first asked.
        It ends when the path is removed. While it is open the sandbox is not frozen. In a workspace, where other
        sandboxes may write, changes are found by looking once a second.

        Raises (while iterating):
            PathNotFoundError: There is no such path.
        """
        query: Query = [("path", remote_path(path)), ("recursive", recursive or None)]
        return FileWatch(self._connection.stream(self._operations.watch, query=query, ids=self._ids))

    def pack(
        self, path: RemotePath, target: str | PathLike[str] | IO[bytes], *, archive_format: ArchiveFormat = "tar"
    ) -> int:
        """Download a file, or a directory with all that is in it, as one archive, and return the archive's size.

        `target` is a local file, which appears whole or not at all, or an open binary file. Links are packed as links;
        sockets and devices are left out. What is in the archive was chosen by the sandbox: unpack it with care.

        Raises:
            OSError: The local file can't be written.
        """
        if not isinstance(target, (str, PathLike)):
            return self._pack(path, target, archive_format)
        with AtomicFile(Path(target)) as file:
            return self._pack(path, file, archive_format)

    def _pack(self, path: RemotePath, file: IO[bytes], archive_format: ArchiveFormat) -> int:
        size = 0
        query: Query = [("path", remote_path(path)), ("format", archive_format)]
        with self._connection.open(self._operations.pack, query=query, ids=self._ids) as response:
            for chunk in response.iter_stream():
                file.write(chunk)
                size += len(chunk)
        return size

    def unpack(self, source: LocalSource, path: RemotePath, *, user: str | None = None) -> Unpacked:
        """Upload a tar, tar.gz or zip archive and unpack it into a directory, which is made.

        Files of the same names are replaced. Entries that lead out of the directory are refused; devices and pipes are
        left out, which `problems` tells. What was unpacked before a failure stays.

        Args:
            source: A local file, an open binary file or an iterable of `bytes`.
            user: Who shall own the files, and whose permissions count. Default root.

        Raises:
            OSError: The local file can't be read.
            InvalidRequestError: It is no such archive, or a hostile one.
        """
        if isinstance(source, (str, PathLike)):
            with open_source(source) as (file, size):
                length = (b"Content-Length", str(size).encode())
                return self._unpack(chunks(file_chunks(file, size)), (length,), path, user)
        pieces: Any = file_chunks(source) if hasattr(source, "read") else source
        return self._unpack(chunks(pieces), (), path, user)

    def _unpack(
        self,
        content: Iterable[bytes],
        headers: tuple[tuple[bytes, bytes], ...],
        path: RemotePath,
        user: str | None,
    ) -> Unpacked:
        operation = self._operations.unpack
        query: Query = [("path", remote_path(path)), ("user", user)]
        with self._connection.open(
            operation, content, query=query, headers=(_OCTETS, *headers), ids=self._ids
        ) as response:
            return decode_answer(operation, response.status, "", response.read())

    def remove(self, path: RemotePath, *, recursive: bool = False) -> None:
        """Remove a file or an empty directory; with `recursive`, a directory with all that is in it."""
        query: Query = [("path", remote_path(path)), ("recursive", recursive)]
        self._connection.call(self._operations.remove, query=query, ids=self._ids)


def _as_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else bytes(content)

# Generated from _async/_filesystem.py by tools/unasync.py: edit that, and run it again.
