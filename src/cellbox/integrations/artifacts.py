"""Where images and documents of a sandbox go instead of into a model's context."""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from cellbox.protocol.values import Value

SUFFIXES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
    "application/pdf": "pdf",
}
"""MIME types that are kept as artifacts, and how their files end."""
VIEWABLE = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What vision models take."""


class Artifact(Value):
    """A reference to one image or document; its bytes are in the `ArtifactStore`."""

    id: str
    """Short, for a model to name it by: `chart-1`."""
    mime_type: str
    size_bytes: int
    width: int = 0
    """In pixels; 0 where it isn't known."""
    height: int = 0

    @property
    def name(self) -> str:
        """A file name for it."""
        return f"{self.id}.{SUFFIXES[self.mime_type]}"

    @property
    def is_viewable(self) -> bool:
        """Whether it can be shown to a vision model."""
        return self.mime_type in VIEWABLE

    def reference(self) -> str:
        """What a model reads in place of the image."""
        pixels = f", {self.width} × {self.height} pixels" if self.width else ""
        return f"[{self.name} ({self.mime_type}{pixels}) was shown to the user, not to you.]"


class ArtifactStore:
    """Keeps the artifacts of one conversation, in memory up to a limit and, if wanted, as files.

    Args:
        directory: Every artifact is also written there, under `Artifact.name`. A file that is there is never replaced.
        on_artifact: Called with each new artifact and its bytes: the way to a user interface.
        limit_bytes: How much is kept in memory; the oldest go first.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        on_artifact: Callable[[Artifact, bytes], object] | None = None,
        limit_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._directory = Path(directory) if directory is not None else None
        self._on_artifact = on_artifact
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[str, tuple[Artifact, bytes]] = OrderedDict()
        self._count = 0
        self._bytes = 0
        self._lock = threading.Lock()

    def put(self, mime_type: str, content: bytes) -> Artifact:
        """Keep an image or document and return its reference. Errors of the directory or the hook are the caller's."""
        with self._lock:
            artifact = self._claim(mime_type, content)
            self._kept[artifact.id] = (artifact, content)
            self._bytes += len(content)
            while self._bytes > self._limit_bytes and len(self._kept) > 1:
                self._bytes -= len(self._kept.popitem(last=False)[1][1])
        if self._on_artifact is not None:
            self._on_artifact(artifact, content)
        return artifact

    def _claim(self, mime_type: str, content: bytes) -> Artifact:
        """The next artifact, and its file. A number that an earlier conversation has used there is passed over."""
        width, height = _pixels(mime_type, content)
        kind = "document" if mime_type == "application/pdf" else "chart"
        while True:
            self._count += 1
            artifact = Artifact(
                id=f"{kind}-{self._count}",
                mime_type=mime_type,
                size_bytes=len(content),
                width=width,
                height=height,
            )
            if self._directory is None:
                return artifact
            self._directory.mkdir(parents=True, exist_ok=True)
            try:
                with (self._directory / artifact.name).open("xb") as file:
                    file.write(content)
            except FileExistsError:
                continue
            return artifact

    def get(self, artifact_id: str) -> tuple[Artifact, bytes] | None:
        """The artifact with its bytes, by id or file name; None when it never was or is no longer kept."""
        with self._lock:
            return self._kept.get(artifact_id) or self._kept.get(artifact_id.rpartition(".")[0])

    def list(self) -> list[Artifact]:
        """What is kept now, oldest first."""
        with self._lock:
            return [artifact for artifact, _ in self._kept.values()]


def _pixels(mime_type: str, content: bytes) -> tuple[int, int]:
    """Width and height of a PNG, which is what charts are; the sandbox made the bytes, so nothing else is parsed."""
    if mime_type == "image/png" and content[:8] == b"\x89PNG\r\n\x1a\n" and len(content) >= 24:
        width, height = struct.unpack(">II", content[16:24])
        return width, height
    return 0, 0
