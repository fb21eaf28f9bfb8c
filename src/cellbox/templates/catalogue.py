"""Where built templates lie and how names lead to them.

```
templates/<digest>/manifest.json, rootfs/, baked/<key>/     content: never changed once it is there, except `baked/`
templates/names/<name>                                      a name: which digest, and how the template presents itself
templates/building/…                                        what a build has so far; swept
```
A sandbox holds on to the digest, so a name that moves on takes nothing away from it.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from cellbox.errors import TemplateNotFoundError, UnknownTemplateError
from cellbox.templates.recipe import TEMPLATE_NAME, Defaults

ALIASES: Mapping[str, str] = {
    "python": "code-interpreter",
    "agent": "code-interpreter",
    "ubuntu-24.04": "base",
    "ubuntu-24.04-net": "base",
}
"""Names that clients of compatible systems send by default; a template of that very name takes precedence."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a template's content; written last, so a directory that has one is whole."""

    digest: str
    base_digest: str
    suite: str
    """The Debian suite further packages come from; empty when the root is no Debian."""
    python: str
    """As `3.13`; empty when the root has no Python."""
    env: dict[str, str]
    user: str
    start_command: str
    defaults: Defaults
    created_at: datetime
    build_seconds: float
    size_bytes: int
    files: int
    packages: dict[str, dict[str, str]]
    """`apt` and `pip` → package → version."""


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """How a name presents what it points to."""

    digest: str
    base: str = ""
    description: str = ""
    category: str = ""
    tools: list[str] = []
    is_builtin: bool = False
    pool: int = 0
    """How many sandboxes are kept ready unless the operator says otherwise."""


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A built template under one of its names."""

    name: str
    label: Label
    manifest: Manifest
    directory: Path

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def rootfs(self) -> Path:
        return self.directory / "rootfs"

    @property
    def env(self) -> dict[str, str]:
        """What the recipe adds to every process's environment."""
        return self.manifest.env

    @property
    def user(self) -> str:
        """Whose name commands run under unless asked otherwise; empty for root."""
        return self.manifest.user

    @property
    def start_command(self) -> str:
        return self.manifest.start_command

    @property
    def cpu(self) -> float:
        return self.manifest.defaults.cpu

    @property
    def memory_mb(self) -> int:
        return self.manifest.defaults.memory_mb

    @property
    def disk_mb(self) -> int:
        return self.manifest.defaults.disk_mb


class Catalogue:
    """The directory of built templates. Methods are quick: a handful of small files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names = root / "names"
        self._manifests: dict[str, Manifest] = {}

    def directory(self, digest: str) -> Path:
        return self.root / digest

    def lock_path(self, digest: str) -> Path:
        return self.root / "locks" / digest

    def new_directory(self) -> Path:
        """Make a directory for a build, on the same file system as the catalogue so that it can be renamed into it."""
        path = self.root / "building" / secrets.token_hex(8)
        path.mkdir(parents=True)
        return path

    def manifest(self, digest: str) -> Manifest | None:
        """Return what is known of a content, or None if it is not there (whole)."""
        if digest not in self._manifests:
            try:
                content = (self.directory(digest) / "manifest.json").read_bytes()
            except OSError:
                return None
            self._manifests[digest] = msgspec.json.decode(content, type=Manifest)
        return self._manifests[digest]

    def add(self, built: Path, manifest: Manifest) -> None:
        """Take a finished build in. Its manifest is written first, then all of it appears at once."""
        (built / "manifest.json").write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        target = self.directory(manifest.digest)
        if target.exists():  # without a manifest, or it would not have been built again
            shutil.rmtree(target)
        built.rename(target)
        self._manifests[manifest.digest] = manifest

    def point(self, name: str, label: Label) -> None:
        """Let a name lead to a digest, at once or not at all."""
        self._names.mkdir(parents=True, exist_ok=True)
        temporary = self._names / f".{secrets.token_hex(6)}"
        temporary.write_bytes(msgspec.json.encode(label))
        temporary.replace(self._names / name)

    def find(self, name: str) -> Template | None:
        """Return the template of exactly this name."""
        if not TEMPLATE_NAME.fullmatch(name) or name.startswith("."):
            return None
        try:
            label = msgspec.json.decode((self._names / name).read_bytes(), type=Label)
        except OSError:
            return None
        manifest = self.manifest(label.digest)
        if manifest is None:
            return None
        return Template(name=name, label=label, manifest=manifest, directory=self.directory(label.digest))

    def resolve(self, name: str) -> Template:
        """Return the template that a user means by `name`: its own name, or an alias. Raises `UnknownTemplateError`."""
        template = self.find(name) or self.find(ALIASES.get(name, name))
        if template is None:
            names = [template.name for template in self.list()]
            there = f"there are {', '.join(names)}" if names else "none is built yet"
            target = ALIASES.get(name, name)
            build = f"build it with `cellbox template build {target}`" if TEMPLATE_NAME.fullmatch(target) else ""
            raise UnknownTemplateError(
                f"no template {name[:80]!r}; {there}", detail=build or None, details={"templates": names}
            )
        return template

    def list(self) -> list[Template]:
        """Return all templates, sorted by name."""
        names = sorted(path.name for path in self._names.glob("[!.]*")) if self._names.is_dir() else []
        return [template for name in names if (template := self.find(name)) is not None]

    def remove(self, name: str) -> None:
        """Take a name away. Its content stays until `unused` says otherwise. Raises `TemplateNotFoundError`."""
        if self.find(name) is None:
            raise TemplateNotFoundError(f"no template {name[:80]!r}")
        (self._names / name).unlink(missing_ok=True)

    def unused(self, in_use: Collection[str]) -> list[str]:
        """Return digests that no name leads to and no sandbox runs from."""
        kept = {template.digest for template in self.list()} | set(in_use)
        present = (entry.name for entry in os.scandir(self.root) if len(entry.name) == 64) if self.root.is_dir() else ()
        return sorted(digest for digest in present if digest not in kept)

    def forget(self, digest: str) -> None:
        self._manifests.pop(digest, None)
