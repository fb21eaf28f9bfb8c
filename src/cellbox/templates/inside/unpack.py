"""Unpacks the layers of an image, in order, into the directory that becomes a template's root filesystem.

Runs in a sandbox that can write nowhere else, under the private interpreter: a name or link in an archive that leads
elsewhere leads nowhere. First all headers are read and what no template may have is refused; then the layers are
unpacked, with the deletions ("whiteouts") that OCI layers express as names.
"""

# Runs in a sandbox, alone, where start-up time counts and what it prints is the log.
# ruff: noqa: PTH101, PTH102, PTH103, PTH108, PTH112, PTH114, PTH120, PTH208, PTH211, T201

import os
import posixpath
import shutil
import sys
import tarfile
from typing import BinaryIO

TARGET = "/.cellbox/out"
MAX_ENTRIES = 2_000_000
MAX_BYTES = 32 << 30
WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"


def main() -> None:
    layers = sys.argv[1:]
    # Opened now: after `chroot` the paths are gone.
    files = [open(path, "rb") for path in layers]  # noqa: SIM115
    for file in files:
        check(file)
        file.seek(0)
    os.umask(0)
    os.chroot(TARGET)
    os.chdir("/")
    count = sum(unpack(file) for file in files)
    print(f"{count} entries unpacked from {len(files)} layer(s)")


def check(file: BinaryIO) -> None:
    refused: list[str] = []
    entries = size = 0
    with open_stream(file) as archive:
        for member in archive:
            entries += 1
            size += max(member.size, 0)
            if member.isdev():
                refused.append(f"/{inner_name(member.name)} ({kind(member)})")
            if not (member.isdev() or member.isreg() or member.isdir() or member.issym() or member.islnk()):
                refused.append(f"/{inner_name(member.name)} (unknown kind {member.type!r})")
            if entries > MAX_ENTRIES or size > MAX_BYTES:
                sys.exit(f"refused: more than {MAX_ENTRIES} entries or {MAX_BYTES >> 30} GiB")
            archive.members = []  # pyright: ignore[reportAttributeAccessIssue] - a stream is read once: keep no headers
    if entries == 0:
        sys.exit("refused: the archive is empty")
    if refused:
        more = f" and {len(refused) - 5} more" if len(refused) > 5 else ""
        sys.exit(f"refused: {', '.join(refused[:5])}{more}; a template has files, directories and links only")


def unpack(file: BinaryIO) -> int:
    count = 0
    unpacked: set[str] = set()
    directories: list[tuple[str, tarfile.TarInfo]] = []
    with open_stream(file) as archive:
        for member in archive:
            name = inner_name(member.name)
            folder, base = posixpath.split(name)
            if base == OPAQUE:
                clear("/" + folder, unpacked)
            elif base.startswith(WHITEOUT):
                remove(posixpath.join("/", folder, base[len(WHITEOUT) :]))
            elif name:
                extract(archive, member, name)
                unpacked.add(name)
                if member.isdir():
                    directories.append((name, member))
                count += 1
            archive.members = []  # pyright: ignore[reportAttributeAccessIssue]
    for name, member in reversed(directories):  # last, for unpacking into a directory changes its times
        if os.path.isdir("/" + name):
            os.utime("/" + name, (member.mtime, member.mtime))
    return count


def extract(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
    path = "/" + name
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    if member.isdir():
        if not os.path.isdir(path) or os.path.islink(path):
            remove(path)
            os.mkdir(path)
        os.chown(path, member.uid, member.gid)
        os.chmod(path, member.mode & 0o7777)
        return
    remove(path)
    if member.issym():
        os.symlink(member.linkname, path)
        os.chown(path, member.uid, member.gid, follow_symlinks=False)
        return
    if member.islnk():
        os.link("/" + inner_name(member.linkname), path, follow_symlinks=False)
        return
    content = archive.extractfile(member)
    with open(path, "xb") as file:
        if content is not None:
            shutil.copyfileobj(content, file, 1 << 20)
    os.chown(path, member.uid, member.gid)
    os.chmod(path, member.mode & 0o7777)
    os.utime(path, (member.mtime, member.mtime))


def inner_name(name: str) -> str:
    """Return a member's name without anything that climbs or starts at the root."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        sys.exit(f"refused: {name!r} climbs out of the archive")
    return "/".join(parts)


def clear(folder: str, unpacked: set[str]) -> None:
    """Remove what lower layers put into a directory, keeping what this layer did."""
    if not os.path.isdir(folder):
        return
    for name in os.listdir(folder):
        inner = posixpath.join(folder, name).lstrip("/")
        if inner not in unpacked and not any(path.startswith(inner + "/") for path in unpacked):
            remove("/" + inner)


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def kind(member: tarfile.TarInfo) -> str:
    return "character device" if member.ischr() else "block device" if member.isblk() else "pipe"


def open_stream(file: BinaryIO) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=file, mode="r|*")
    except tarfile.ReadError:
        sys.exit("refused: no tar archive, or a compression other than gzip, xz and bzip2")


if __name__ == "__main__":
    main()
