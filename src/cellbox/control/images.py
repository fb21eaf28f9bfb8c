"""Saved machines on disk: written whole or not at all, sealed, and checked before they are used.

```
<root>/<id>/manifest.json, seal, image/…     a saved machine; appears by one rename
<root>/.<random>/                            what is being written, or a fork's image; swept at the start
```
An image is the memory of a sandbox: everything here is for the daemon's user alone. The manifest names owner, engine
build and template, and the hash of every part; the seal is its HMAC under a key of this installation. A restore trusts
what it is given, so nothing is restored that this installation has not sealed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import secrets
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from pathlib import Path
from typing import Literal

import msgspec

from cellbox import errors
from cellbox.engines.base import EngineFault, MachineSpec
from cellbox.wire import frames

_RESERVE_BYTES = 512 * 1024**2  # of the host's disk that no image may eat into
_MANIFEST_BYTES = 1024 * 1024

Cause = Literal["damaged", "foreign", "template_gone"]


class Part(msgspec.Struct, frozen=True):
    """One file of an image."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an image was made of, and with what."""

    id: str
    owner: str
    sandbox_id: str
    template: str
    template_digest: str
    image_key: str
    """Of the engine: its build, flags and the processor's features."""
    protocol: int
    """Version of the wire that the saved guest speaks."""
    argv: tuple[str, ...]
    env: dict[str, str]
    memory_mb: int
    disk_mb: int
    cpu: float
    tasks: int
    parts: dict[str, Part] = {}

    @property
    def size_bytes(self) -> int:
        return sum(part.size for part in self.parts.values())

    def spec(self, machine_id: str, rootfs: Path) -> MachineSpec:
        """Return what the engine restores the image with: the same as it was, under another name."""
        return MachineSpec(
            machine_id=machine_id,
            rootfs=rootfs,
            argv=self.argv,
            env=self.env,
            memory_mb=self.memory_mb,
            disk_mb=self.disk_mb,
            cpu=self.cpu,
            tasks=self.tasks,
        )


def manifest_of(
    spec: MachineSpec, *, image_id: str, owner: str, template: str, template_digest: str, image_key: str
) -> Manifest:
    """Describe a machine that is about to be saved."""
    return Manifest(
        id=image_id,
        owner=owner,
        sandbox_id=spec.machine_id,
        template=template,
        template_digest=template_digest,
        image_key=image_key,
        protocol=frames.VERSION,
        argv=spec.argv,
        env=dict(spec.env),
        memory_mb=spec.memory_mb,
        disk_mb=spec.disk_mb,
        cpu=spec.cpu,
        tasks=spec.tasks,
    )


class SavedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that may be restored now."""

    manifest: Manifest
    path: Path
    sha256: str = ""
    """Of its manifest."""


class Images:
    """The saved machines below one directory. Ids are this daemon's own; no caller's text becomes a path."""

    def __init__(self, root: Path, key_file: Path) -> None:
        self._root = root
        self._key_file = key_file
        self._key = b""
        self._seen: dict[str, tuple[tuple[int, ...], ...]] = {}

    async def start(self, keep: Collection[str]) -> None:
        """Load the key, and remove images that no row knows of and what was never finished."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._key = _load_key(self._key_file)
        for entry in list(self._root.iterdir()):
            if entry.name not in keep:
                await asyncio.to_thread(shutil.rmtree, entry, ignore_errors=True)

    def check_space(self, expected_bytes: int) -> None:
        """Raise `StorageFullError` when the host's disk has no room for so many bytes and its own reserve."""
        free = shutil.disk_usage(self._root).free
        if free < expected_bytes + _RESERVE_BYTES:
            raise errors.StorageFullError(
                f"the host's disk has {free // 1024**2} MiB left, and about {expected_bytes // 1024**2} are needed",
                detail="delete snapshots or hibernated sandboxes",
            )

    @contextlib.asynccontextmanager
    async def scratch(self) -> AsyncGenerator[Path]:
        """A directory for an image that is used at once and never again; removed in the end."""
        folder = self._root / f".{secrets.token_hex(8)}"
        (folder / "image").mkdir(mode=0o700, parents=True)
        folder.chmod(0o700)
        try:
            yield folder / "image"
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))

    async def save(self, manifest: Manifest, take: Callable[[Path], Awaitable[None]]) -> SavedImage:
        """Let `take` write an image into an empty directory, and keep it under the manifest's id.

        Raises what `take` raises, and `StorageFullError`; nothing is left then.
        """
        async with self.scratch() as draft:
            try:
                await take(draft)
                return await asyncio.to_thread(self._keep, manifest, draft)
            except OSError as error:
                raise errors.StorageFullError(f"the image could not be written: {error.strerror}") from error

    def _keep(self, manifest: Manifest, draft: Path) -> SavedImage:
        parts = {path.name: _digest(path, sync=True) for path in sorted(draft.iterdir())}
        manifest = msgspec.structs.replace(manifest, parts=parts)
        document = msgspec.json.encode(manifest)
        _write(draft.parent / "manifest.json", document)
        _write(draft.parent / "seal", self._seal(document))
        for folder in (draft, draft.parent):
            _sync(folder)
        target = self._root / manifest.id
        draft.parent.rename(target)
        _sync(self._root)
        self._seen[manifest.id] = _state(target / "image", manifest)
        return SavedImage(manifest=manifest, path=target / "image", sha256=hashlib.sha256(document).hexdigest())

    async def open(self, image_id: str, *, image_key: str) -> SavedImage:
        """Check an image and return it. Every byte is read the first time; later only what tells of a change.

        Raises `SnapshotUnusableError`.
        """
        return await asyncio.to_thread(self._open, image_id, image_key)

    async def read(self, image_id: str) -> Manifest | None:
        """Return the manifest of an image; None when it is missing or not sealed by this installation."""
        try:
            return (await asyncio.to_thread(self._read, image_id))[0]
        except errors.SnapshotUnusableError:
            return None

    def _read(self, image_id: str) -> tuple[Manifest, bytes]:
        folder = self._root / image_id
        try:
            with (folder / "manifest.json").open("rb") as file:
                document = file.read(_MANIFEST_BYTES)
            seal = (folder / "seal").read_bytes()
        except OSError as error:
            raise unusable("damaged", f"its files can't be read: {error.strerror}") from None
        if not hmac.compare_digest(seal, self._seal(document)):
            raise unusable("damaged", "its seal is not that of this installation")
        try:
            manifest = msgspec.json.decode(document, type=Manifest)
        except msgspec.MsgspecError:
            raise unusable("foreign", "its manifest is of another Cellbox") from None
        if manifest.id != image_id:
            raise unusable("damaged", "it is another image's manifest")
        return manifest, document

    def _open(self, image_id: str, image_key: str) -> SavedImage:
        manifest, document = self._read(image_id)
        folder = self._root / image_id
        if manifest.image_key != image_key:
            raise unusable("foreign", f"made by {manifest.image_key}, here is {image_key}")
        if manifest.protocol != frames.VERSION:
            raise unusable("foreign", f"its guest speaks protocol {manifest.protocol}, this Cellbox {frames.VERSION}")
        self._check_parts(manifest, folder / "image")
        return SavedImage(manifest=manifest, path=folder / "image", sha256=hashlib.sha256(document).hexdigest())

    def _check_parts(self, manifest: Manifest, image: Path) -> None:
        try:
            state = _state(image, manifest)
            if self._seen.get(manifest.id) == state:
                return
            for name, part in manifest.parts.items():
                if _digest(image / name) != part:
                    raise unusable("damaged", f"{name} is not what was saved")
            self._seen[manifest.id] = state
        except OSError as error:
            raise unusable("damaged", f"a part can't be read: {error.strerror}") from None

    async def remove(self, image_id: str) -> None:
        """Delete an image; nothing happens when there is none."""
        self._seen.pop(image_id, None)
        folder = self._root / image_id
        doomed = self._root / f".{secrets.token_hex(8)}"
        with contextlib.suppress(OSError):
            folder.rename(doomed)  # gone at once and whole, also if the daemon dies in the midst of it
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, doomed, ignore_errors=True))

    def _seal(self, document: bytes) -> bytes:
        return hmac.digest(self._key, document, "sha256")


def unusable(cause: Cause, why: str) -> errors.SnapshotUnusableError:
    """Return the error for an image that can't be restored."""
    advice = {
        "damaged": "delete it and take another",
        "foreign": "restore it with the engine, processor and Cellbox that made it, or take another",
        "template_gone": "build the template again from the same recipe",
    }
    return errors.SnapshotUnusableError(
        f"the saved state can't be restored: {why}", detail=advice[cause], details={"cause": cause}
    )


def save_failed(fault: EngineFault) -> errors.APIError:
    """Return the error for a machine that could not be saved."""
    return errors.GuestError(f"the sandbox could not be saved: {str(fault)[:500]}", details={"cause": "checkpoint"})


def _digest(path: Path, *, sync: bool = False) -> Part:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if sync:
            os.fsync(file.fileno())
        return Part(size=os.fstat(file.fileno()).st_size, sha256=digest)


def _state(image: Path, manifest: Manifest) -> tuple[tuple[int, ...], ...]:
    """Return what changes whenever a part does: nobody but the kernel can set a file's `ctime`."""
    found = [(image / name).stat() for name in sorted(manifest.parts)]
    return tuple((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in found)


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _load_key(file: Path) -> bytes:
    """Read the key that images are sealed with, making it at the first start. Without it, none can be used."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        key = secrets.token_bytes(32)
        draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
        _write(draft, key)
        draft.rename(file)  # one daemon per data directory: nobody else makes one meanwhile
        _sync(file.parent)
        return key
