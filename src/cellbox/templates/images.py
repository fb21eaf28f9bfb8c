"""Reads OCI image layouts: which layers, in which order, with which environment. Unpacks nothing.

The host reads three small JSON documents, each checked against its digest, and hashes the layers. What is inside the
layers is looked at and unpacked in a sandbox (`inside/unpack.py`): no archive parser meets hostile bytes on the host.
"""

from __future__ import annotations

import asyncio
import hashlib
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from cellbox.templates.events import StepError

_JSON_LIMIT = 4 * 1024 * 1024
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_INDEX_TYPES = frozenset(
    {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Document = TypeVar("Document", bound=msgspec.Struct)


class _Platform(msgspec.Struct, frozen=True):
    architecture: str = ""
    os: str = ""


class _Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    digest: str
    size: int = 0
    media_type: str = ""
    platform: _Platform | None = None


class _Index(msgspec.Struct, frozen=True):
    manifests: list[_Descriptor]


class _Manifest(msgspec.Struct, frozen=True):
    config: _Descriptor
    layers: list[_Descriptor]


class _Settings(msgspec.Struct, frozen=True):
    env: list[str] | None = msgspec.field(default=None, name="Env")


class _Config(msgspec.Struct, frozen=True):
    architecture: str = ""
    config: _Settings = _Settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What is to be unpacked: paths relative to the directory that holds the image."""

    folder: Path
    layers: tuple[str, ...]
    env: dict[str, str]


def tar_image(path: Path) -> Image:
    """Return a root filesystem in one tar file as an image of one layer."""
    return Image(folder=path.parent, layers=(path.name,), env={})


async def oci_image(layout: Path) -> Image:
    """Read and check an OCI image layout. Raises `StepError` that says what is wrong with it."""
    return await asyncio.to_thread(_read_layout, layout)


def _read_layout(layout: Path) -> Image:
    index = _decode(_read(layout / "index.json"), _Index, "index.json")
    descriptor = _choose(index.manifests)
    for _ in range(3):  # an index may name an index
        if descriptor.media_type not in _INDEX_TYPES:
            break
        descriptor = _choose(_decode(_read_blob(layout, descriptor), _Index, "image index").manifests)
    manifest = _decode(_read_blob(layout, descriptor), _Manifest, "image manifest")
    config = _decode(_read_blob(layout, manifest.config), _Config, "image configuration")
    own = _ARCHITECTURES.get(platform.machine(), platform.machine())
    if config.architecture not in ("", own):
        raise StepError(f"the image is for {config.architecture}, this machine is {own}")
    for layer in manifest.layers:
        if "zstd" in layer.media_type or "encrypted" in layer.media_type:
            raise StepError(f"layers of type {layer.media_type} are not supported; use gzip")
        _check_blob(layout, layer)
    pairs = (entry.partition("=") for entry in config.config.env or ())
    env = {name: value for name, _, value in pairs if _VARIABLE.fullmatch(name) and "\0" not in value}
    return Image(folder=layout, layers=tuple(str(_blob_path(layer)) for layer in manifest.layers), env=env)


def _choose(manifests: list[_Descriptor]) -> _Descriptor:
    own = _ARCHITECTURES.get(platform.machine(), platform.machine())
    fitting = [
        entry
        for entry in manifests
        if entry.platform is None or (entry.platform.os in ("", "linux") and entry.platform.architecture in ("", own))
    ]
    if len(fitting) != 1:
        raise StepError(f"the layout has {len(fitting)} images for linux/{own}; it must have exactly one")
    return fitting[0]


def _blob_path(descriptor: _Descriptor) -> Path:
    match = _DIGEST.fullmatch(descriptor.digest)  # becomes a path: nothing but hex digits will do
    if match is None:
        raise StepError(f"{descriptor.digest[:80]!r} is no sha256 digest")
    return Path("blobs/sha256") / match[1]


def _read_blob(layout: Path, descriptor: _Descriptor) -> bytes:
    content = _read(layout / _blob_path(descriptor))
    if "sha256:" + hashlib.sha256(content).hexdigest() != descriptor.digest:
        raise StepError(f"blob {descriptor.digest} does not have its digest")
    return content


def _check_blob(layout: Path, descriptor: _Descriptor) -> None:
    path = layout / _blob_path(descriptor)
    if path.is_symlink() or not path.is_file():
        raise StepError(f"layer {descriptor.digest} is missing")
    with path.open("rb") as file:
        if "sha256:" + hashlib.file_digest(file, "sha256").hexdigest() != descriptor.digest:
            raise StepError(f"layer {descriptor.digest} does not have its digest")


def _read(path: Path) -> bytes:
    if path.is_symlink() or not path.is_file():
        raise StepError(f"no file {path.name} in the OCI layout")
    if path.stat().st_size > _JSON_LIMIT:
        raise StepError(f"{path.name} in the OCI layout is larger than {_JSON_LIMIT >> 20} MiB")
    return path.read_bytes()


def _decode(content: bytes, kind: type[Document], what: str) -> Document:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise StepError(f"{what}: {error}") from None
