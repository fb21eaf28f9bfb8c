"""OCI layouts are read with every digest checked, and nothing in them names a path."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import pytest

from cellbox.templates.events import StepError
from cellbox.templates.images import oci_image

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"


class Layout:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs/sha256").mkdir(parents=True)

    def blob(self, content: bytes, kind: str, **more: Any) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "blobs/sha256" / digest).write_bytes(content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content), **more}

    def json(self, document: Any, kind: str, **more: Any) -> dict[str, Any]:
        return self.blob(json.dumps(document).encode(), kind, **more)

    def image(
        self, *layers: dict[str, Any], architecture: str = ARCHITECTURE, env: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        config = self.json({"architecture": architecture, "os": "linux", "config": {"Env": list(env)}}, "config")
        platform_of = {"architecture": architecture, "os": "linux"}
        return self.json({"schemaVersion": 2, "config": config, "layers": layers}, MANIFEST, platform=platform_of)

    def index(self, *manifests: dict[str, Any]) -> None:
        (self.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "layout")


async def test_layers_and_environment_are_found_in_order(layout: Layout) -> None:
    one, two = layout.blob(b"one", GZIP), layout.blob(b"two", GZIP)
    layout.index(layout.image(one, two, env=("A=1", "PATH=/x=y", "bad name=1")))
    image = await oci_image(layout.folder)
    assert [Path(layer).name for layer in image.layers] == [one["digest"][7:], two["digest"][7:]]
    assert image.env == {"A": "1", "PATH": "/x=y"}


async def test_nested_index_is_followed_to_this_architecture(layout: Layout) -> None:
    layer = layout.blob(b"one", GZIP)
    nested = layout.json({"manifests": [layout.image(layer), layout.image(architecture="s390x")]}, INDEX)
    layout.index(nested)
    assert len((await oci_image(layout.folder)).layers) == 1


async def test_other_architecture_is_refused(layout: Layout) -> None:
    layout.index(layout.image(architecture="s390x"))
    with pytest.raises(StepError, match="has 0 images"):
        await oci_image(layout.folder)


async def test_changed_layer_is_refused(layout: Layout) -> None:
    layer = layout.blob(b"one", GZIP)
    layout.index(layout.image(layer))
    (layout.folder / "blobs/sha256" / layer["digest"][7:]).write_bytes(b"changed")
    with pytest.raises(StepError, match="does not have its digest"):
        await oci_image(layout.folder)


async def test_changed_manifest_is_refused(layout: Layout) -> None:
    manifest = layout.image(layout.blob(b"one", GZIP))
    layout.index(manifest)
    (layout.folder / "blobs/sha256" / manifest["digest"][7:]).write_bytes(b"{}")
    with pytest.raises(StepError, match="does not have its digest"):
        await oci_image(layout.folder)


@pytest.mark.parametrize("digest", ["sha256:../../../etc/passwd", "md5:00", "sha256:" + "A" * 64, ""])
async def test_digest_that_is_a_path_is_refused(layout: Layout, digest: str) -> None:
    layout.index({"mediaType": MANIFEST, "digest": digest, "size": 1})
    with pytest.raises(StepError, match="no sha256 digest"):
        await oci_image(layout.folder)


async def test_linked_layer_is_refused(layout: Layout, tmp_path: Path) -> None:
    layer = layout.blob(b"one", GZIP)
    layout.index(layout.image(layer))
    path = layout.folder / "blobs/sha256" / layer["digest"][7:]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StepError, match="missing"):
        await oci_image(layout.folder)


async def test_unsupported_compression_is_told(layout: Layout) -> None:
    layout.index(layout.image(layout.blob(b"one", GZIP.replace("gzip", "zstd"))))
    with pytest.raises(StepError, match="zstd"):
        await oci_image(layout.folder)


async def test_garbage_is_refused(layout: Layout) -> None:
    (layout.folder / "index.json").write_text('{"manifests": 1}')
    with pytest.raises(StepError, match=r"index\.json"):
        await oci_image(layout.folder)
