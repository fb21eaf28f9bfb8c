"""Where workspaces lie on the host: each in a file system of its own, so that none can outgrow its size.

```
DIRECTORY/ID/disk.ext4   an image of the workspace's size, sparse: it takes what is used of it
DIRECTORY/ID/mounted     where it is mounted while it is in use
DIRECTORY/ID/files       instead of both, on hosts where this process can't mount images: no size is enforced
```

The daemon never opens a path in a workspace: sandboxes do. Deleting an image needs no walk through what is in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

import structlog

from cellbox import errors
from cellbox.engines import mounts
from cellbox.guest.trees import remove_tree

_PROGRAM_SECONDS = 60.0
_OPTIONS = "loop,nosuid,nodev,noatime,errors=remount-ro,noinit_itable"
"""The last one keeps a thread of the kernel's from filling the sparse image with the zeros of unused inodes."""
# Small journal, no blocks kept back for root, an inode for each 8 KiB: it is a directory of files, not a system's disk.
_MKFS = ("mkfs.ext4", "-q", "-F", "-m", "0", "-i", "8192", "-J", "size=4", "-E", "root_owner=0:0,nodiscard")
_SBIN = ("/usr/sbin", "/sbin")

_log = structlog.stdlib.get_logger(__name__)


class WorkspaceStorage:
    """The directories of all workspaces. Calls about one workspace must not overlap."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.problem = ""
        """Why sizes can't be enforced on this host, once that was found."""

    async def make(self, workspace_id: str, size_mb: int) -> None:
        """Make an empty workspace. Raises `StorageFullError`, or `InternalError` for another failure of the host's."""
        place = self._directory / workspace_id
        try:
            place.mkdir(parents=True, mode=0o700)
            self._directory.chmod(0o700)
            if not self.problem and (problem := await self._make_image(place, size_mb)):
                _log.warning("the sizes of workspaces can't be enforced on this host", reason=problem)
                self.problem = problem
            if self.problem:
                (place / "files").mkdir(mode=0o755)
        except BaseException as error:
            await self.remove(workspace_id)
            if isinstance(error, OSError):
                raise _typed(error) from error
            raise

    async def _make_image(self, place: Path, size_mb: int) -> str:
        """Make the image and mount it once; returns why that does not work here."""
        image = place / "disk.ext4"
        with image.open("xb") as file:
            image.chmod(0o600)
            file.truncate(size_mb << 20)
        problem = await _run(*_MKFS, str(image)) or await self._mount(place)
        if problem:
            image.unlink()
            return problem
        with contextlib.suppress(FileNotFoundError):
            (place / "mounted" / "lost+found").rmdir()
        (place / "mounted").chmod(0o755)
        await asyncio.to_thread(mounts.unmount, place / "mounted")
        return ""

    async def _mount(self, place: Path) -> str:
        mounted = place / "mounted"
        mounted.mkdir(exist_ok=True, mode=0o700)
        return await _run("mount", "-t", "ext4", "-o", _OPTIONS, str(place / "disk.ext4"), str(mounted))

    def is_enforced(self, workspace_id: str) -> bool:
        return (self._directory / workspace_id / "disk.ext4").exists()

    async def open(self, workspace_id: str) -> Path:
        """Make the content reachable and return its directory. Raises `InternalError`."""
        place = self._directory / workspace_id
        if not self.is_enforced(workspace_id):
            return place / "files"
        if problem := await self._mount(place):
            raise errors.InternalError("the workspace could not be mounted", detail=problem)
        return place / "mounted"

    async def close(self, workspace_id: str) -> None:
        """Put away what `open` made reachable; returns when it is written to the disk."""
        mounted = self._directory / workspace_id / "mounted"
        for place in mounts.mounted_below(mounted):
            with contextlib.suppress(OSError):
                await asyncio.to_thread(mounts.unmount, place)

    async def size_bytes(self, workspace_id: str) -> int:
        """What a workspace takes of the host's disk."""
        return await asyncio.to_thread(_size_bytes, self._directory / workspace_id)

    async def remove(self, workspace_id: str) -> None:
        """Remove a workspace that is not in use, with all that is in it. Links are removed, never followed."""
        await self.close(workspace_id)
        place = self._directory / workspace_id
        files = place / "files"
        with contextlib.suppress(FileNotFoundError):
            await remove_tree(str(files))
        with contextlib.suppress(FileNotFoundError):
            (place / "disk.ext4").unlink()
        with contextlib.suppress(OSError):
            (place / "mounted").rmdir()
        with contextlib.suppress(OSError):
            place.rmdir()

    def ids(self) -> set[str]:
        """Every workspace that left something here."""
        with contextlib.suppress(FileNotFoundError):
            return {entry.name for entry in self._directory.iterdir()}
        return set()


async def _run(*command: str) -> str:
    """Run a program of the host's; returns what is wrong, in words, or nothing."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SBIN])
    program = shutil.which(command[0], path=path)
    if program is None:
        return f"there is no {command[0]} on this host"
    process = await asyncio.create_subprocess_exec(
        program,
        *command[1:],
        env={"PATH": path, "LC_ALL": "C"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_PROGRAM_SECONDS):
            _, complaint = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"{command[0]} did not end"
    if process.returncode == 0:
        return ""
    return complaint.decode(errors="replace").strip()[-300:] or f"{command[0]} ended with {process.returncode}"


def _size_bytes(place: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (place / "disk.ext4").stat().st_blocks * 512
    blocks = 0
    if not (place / "files").is_dir():
        return 0
    for _, _, names, directory in os.fwalk(place / "files", onerror=None):
        for name in names:
            with contextlib.suppress(OSError):
                blocks += os.stat(name, dir_fd=directory, follow_symlinks=False).st_blocks
    return blocks * 512


def _typed(error: OSError) -> errors.APIError:
    if error.errno in (28, 122):  # ENOSPC, EDQUOT
        return errors.StorageFullError("the host has no room for another workspace")
    return errors.InternalError("the workspace could not be made", detail=error.strerror)
