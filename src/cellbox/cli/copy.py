"""`cellbox cp`: files and directories into and out of a sandbox.

What comes out is hostile: a sandbox chooses names as it likes, so each is checked before a local path is made of it,
links are never followed or recreated, and no archive is unpacked.
"""

from __future__ import annotations

import os
import posixpath
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from cellbox import Client, Filesystem
from cellbox.cli.about import Dashable, RawFlag
from cellbox.cli.exits import Exit, UsageError
from cellbox.cli.finding import open_sandbox
from cellbox.cli.output import say, size
from cellbox.cli.terminal import GuestStream
from cellbox.errors import PathNotFoundError


def copy(source: Dashable, target: Dashable, /, *, raw: RawFlag = False) -> int:
    """Copy a file or directory into or out of a sandbox: `cellbox cp data.csv ID:/workspace/`.

    Exactly one side is ID:/PATH. `-` stands for standard input or output. A directory is copied with all that is in it;
    links in a sandbox are left out. A target that is a directory, or ends in `/`, gets the source's name added.

    Args:
        source: LOCAL, ID:/PATH or `-`.
        target: LOCAL, ID:/PATH or `-`.
    """
    with Client() as client:
        return transfer(source, target, lambda name: open_sandbox(client, name).filesystem, "ID", raw=raw)


def transfer(source: str, target: str, find: Callable[[str], Filesystem], what: str, *, raw: bool) -> int:
    """Copy between here and the files that `find` finds under a name; `what` is said of that in a usage message."""
    origin, destination = _remote(source), _remote(target)
    if origin is not None and destination is None:
        return _out_of(find(origin[0]), origin[1], target, raw=raw)
    if destination is None or origin is not None:
        raise UsageError(f"Exactly one side must be {what}:/PATH: cp LOCAL {what}:/PATH, or cp {what}:/PATH LOCAL.")
    _into(find(destination[0]), source, destination[1])
    return Exit.OK


def _remote(text: str) -> tuple[str, str] | None:
    """`ID:/PATH` taken apart. A local file whose name looks like that is written `./…`."""
    name, colon, path = text.partition(":")
    if not colon or not path.startswith("/") or not name or "/" in name:
        return None
    return name, path


def _into(files: Filesystem, source: str, path: str) -> None:
    if source == "-":
        if path.endswith("/"):
            raise UsageError("Standard input needs a file's name as its target.")
        say(f"{size(files.upload(sys.stdin.buffer, path).bytes)} to {path}")
        return
    local = Path(source)
    if not local.exists():
        raise UsageError(f"{source} does not exist.")
    if path.endswith("/") or _is_directory(files, path):
        path = posixpath.join(path, local.resolve().name)
    if not local.is_dir():
        say(f"{size(files.upload(local, path, mode=_mode(local)).bytes)} to {path}")
        return
    count = total = 0
    files.mkdir(path)
    for directory, subdirectories, names in os.walk(local):
        base = posixpath.join(path, Path(directory).relative_to(local).as_posix())
        for name in subdirectories:
            files.mkdir(posixpath.normpath(posixpath.join(base, name)))
        for name in names:
            entry = Path(directory, name)
            if not entry.is_file():
                say(f"left out, no regular file: {entry}")
                continue
            written = files.upload(entry, posixpath.normpath(posixpath.join(base, name)), mode=_mode(entry))
            count, total = count + 1, total + written.bytes
    say(f"{count} files, {size(total)} to {path}")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) & 0o777


def _is_directory(files: Filesystem, path: str) -> bool:
    try:
        return files.stat(path).is_dir
    except PathNotFoundError:
        return False


def _out_of(files: Filesystem, path: str, target: str, *, raw: bool) -> int:
    if target == "-":
        stream = _AsFile(GuestStream(sys.stdout, raw=raw))
        files.download(path, cast("BinaryIO", stream))
        stream.close()
        return Exit.OK
    local = Path(target)
    if local.is_dir() or target.endswith("/"):
        local = local / _safe(posixpath.basename(path.rstrip("/")) or "root")
    if not files.stat(path).is_dir:
        local.parent.mkdir(parents=True, exist_ok=True)
        say(f"{size(files.download(path, local))} to {local}")
        return Exit.OK
    return _directory_out_of(files, path.rstrip("/") or "/", local)


def _directory_out_of(files: Filesystem, path: str, local: Path) -> int:
    count = total = skipped = 0
    for directory, subdirectories, entries in files.walk(path):
        subdirectories[:] = [entry for entry in subdirectories if _is_safe(entry.name)]
        here = local.joinpath(*[_safe(part) for part in directory[len(path) :].split("/") if part])
        here.mkdir(parents=True, exist_ok=True)
        for entry in entries:
            if entry.mode != "f" or not _is_safe(entry.name):
                say(f"left out, no regular file: {directory}/{entry.name}")
                skipped += 1
                continue
            total += files.download(f"{directory.rstrip('/')}/{entry.name}", here / entry.name)
            count += 1
    say(f"{count} files, {size(total)} to {local}" + (f", {skipped} left out" if skipped else ""))
    return Exit.FAILURE if skipped else Exit.OK


def _is_safe(name: str) -> bool:
    """Is it one step down, and nothing else? Against a sandbox that lists `../../.ssh/authorized_keys`."""
    return name not in {"", ".", ".."} and "/" not in name and "\0" not in name


def _safe(name: str) -> str:
    if not _is_safe(name):
        raise UsageError(f"The sandbox names a file {name!r}, which can't be one.")
    return name


class _AsFile:
    """Lets `download` write to the user's standard output through the filter."""

    def __init__(self, stream: GuestStream) -> None:
        self._stream = stream

    def write(self, data: bytes) -> int:
        self._stream.write_bytes(data)
        return len(data)

    def close(self) -> None:
        self._stream.close()
