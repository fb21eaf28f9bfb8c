"""What a template is made of: a folder with `recipe.toml`, read strictly, and the digest that names the result.

A recipe comes from a user and is no trusted input: names, requirements and paths are checked here, once, so that no
later step can be handed an option, an address or a path outside the recipe's own folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from cellbox.errors import InvalidRequestError

RECIPE_FILE = "recipe.toml"
BUILDER_VERSION = 1
"""Raise it when the same recipe would now give another root filesystem."""

TEMPLATE_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?(=[A-Za-z0-9.+:~-]+)?")
# A name, extras and version bounds; a marker after `;`. No address, no path and, above all, no option.
_BOUND = r"(===?|~=|!=|<=?|>=?)\s*[A-Za-z0-9][A-Za-z0-9.*+!_]*"
_REQUIREMENT = re.compile(
    rf"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._, -]+\])?\s*({_BOUND}(\s*,\s*{_BOUND})*)?\s*(;[^\n#]*)?"
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}")
_SUITE = re.compile(r"[a-z][a-z-]*")

Text = Annotated[str, msgspec.Meta(max_length=4096)]
Script = Annotated[str, msgspec.Meta(min_length=1, max_length=65536)]


class Defaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a sandbox of this template gets when its creator asks for nothing else."""

    cpu: Annotated[float, msgspec.Meta(gt=0, le=64)] = 2.0
    memory_mb: Annotated[int, msgspec.Meta(ge=128, le=65536)] = 1024
    disk_mb: Annotated[int, msgspec.Meta(ge=64, le=65536)] = 1024


class RecipeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`recipe.toml`, key by key. Exactly one of `base`, `debian`, `rootfs` and `oci` says what to start from."""

    name: str
    description: Text = ""
    category: Text = "custom"
    tools: list[Text] = []
    base: str = ""
    """Another template's name."""
    debian: str = ""
    """A Debian suite to bootstrap from the machine's own package mirror."""
    rootfs: str = ""
    """A root filesystem as a tar file (plain, gzip, xz, bzip2), beside the recipe."""
    oci: str = ""
    """An OCI image layout: a directory with `index.json`, beside the recipe."""
    apt: list[str] = []
    pip: list[str] = []
    pip_lock: str = ""
    """A requirements file with exact versions and hashes, beside the recipe; instead of `pip`."""
    python: str = ""
    """The Python that `pip` packages are for, as `3.13`. Only needed to download them before the base is built."""
    run: list[Script] = []
    """Shell steps, each run inside a sandbox with no network, as root, in `/root`."""
    env: dict[str, Text] = {}
    user: str = ""
    start_command: Script | Literal[""] = ""
    defaults: Defaults = Defaults()
    pool: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    """How many sandboxes are kept ready, where the operator sets nothing else."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe that was read and found good, with the folder its files lie in."""

    file: RecipeFile
    folder: Path

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def files(self) -> Path | None:
        """The tree that is copied over the root filesystem, dotfiles and all."""
        folder = self.folder / "files"
        return folder if folder.is_dir() else None

    @property
    def wheels(self) -> Path | None:
        """Wheels that come with the recipe, found before any index is asked."""
        folder = self.folder / "wheels"
        return folder if folder.is_dir() else None

    @property
    def archive(self) -> Path | None:
        """The tar file or OCI layout to start from."""
        name = self.file.rootfs or self.file.oci
        return self.folder / name if name else None

    @property
    def lock(self) -> Path | None:
        return self.folder / self.file.pip_lock if self.file.pip_lock else None

    def digest(self, base_digest: str) -> str:
        """Return the content address of what this recipe builds on top of `base_digest`.

        The name, the description and the pool are no part of it: the same content under two names is built once.
        """
        fields = msgspec.to_builtins(self.file)
        for label in ("name", "description", "category", "tools", "base", "pool"):
            del fields[label]
        parts: dict[str, Any] = {"builder": BUILDER_VERSION, "base": base_digest, "recipe": fields}
        for label, path in (("lock", self.lock), ("files", self.files), ("wheels", self.wheels)):
            parts[label] = list(_fingerprints(path)) if path else []
        parts["archive"] = list(_fingerprints(self.archive)) if self.archive else []
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def read_recipe(folder: Path) -> Recipe:
    """Read and check `folder/recipe.toml`. Raises `InvalidRequestError` that names the key and says what to change."""
    path = folder / RECIPE_FILE
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"no recipe: {path}: {error.strerror}") from None
    try:
        file = msgspec.toml.decode(text, type=RecipeFile, strict=True)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"{path}: {error}") from None
    recipe = Recipe(file=file, folder=folder)
    _check(recipe, str(path))
    return recipe


def check_name(name: str) -> str:
    """Return `name` if a template may be called so. A name becomes a file name: nothing but a plain one will do."""
    if not TEMPLATE_NAME.fullmatch(name) or name.startswith("."):
        raise InvalidRequestError(
            f"{name[:80]!r} is no template name: 1 to 64 of letters, digits, '.', '_', '-', and no leading dot"
        )
    return name


def _check(recipe: Recipe, where: str) -> None:
    file = recipe.file

    def refuse(reason: str) -> InvalidRequestError:
        return InvalidRequestError(f"{where}: {reason}")

    check_name(file.name)
    if sum(map(bool, (file.base, file.debian, file.rootfs, file.oci))) != 1:
        raise refuse("exactly one of `base`, `debian`, `rootfs` and `oci` must be given")
    if file.base:
        check_name(file.base)
    if file.pip and file.pip_lock:
        raise refuse("give either `pip` or `pip_lock`")
    for key, values, pattern in (
        ("apt", file.apt, _PACKAGE),
        ("pip", file.pip, _REQUIREMENT),
        ("env", list(file.env), _VARIABLE),
        ("debian", [file.debian] if file.debian else [], _SUITE),
        ("user", [file.user] if file.user else [], _USER),
        ("python", [file.python] if file.python else [], re.compile(r"3\.\d{1,2}")),
    ):
        for value in values:
            if not pattern.fullmatch(value):
                raise refuse(f"`{key}`: {value[:80]!r} is not allowed here")
    if any("\0" in text for text in (*file.env.values(), *file.run, file.start_command)):
        raise refuse("a NUL character in `env`, `run` or `start_command`")
    for key, name in (("rootfs", file.rootfs), ("oci", file.oci), ("pip_lock", file.pip_lock)):
        if name:
            _check_beside(recipe.folder, name, refuse_as=f"{where}: `{key}`")
    if recipe.lock is not None:
        check_lock(recipe.lock.read_text())


def check_lock(text: str) -> None:
    """Refuse a lock that could make pip read other files, ask other places or run code."""
    for line in text.replace("\\\n", " ").splitlines():
        entry = line.split(" #")[0].strip()
        if not entry or entry.startswith("#"):
            continue
        requirement, *hashes = entry.split(" --hash=")
        if not _REQUIREMENT.fullmatch(requirement.strip()) or "==" not in requirement:
            raise InvalidRequestError(f"lock file: {entry[:80]!r} is no exact requirement")
        if not all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest.strip()) for digest in hashes):
            raise InvalidRequestError(f"lock file: {requirement!r} has a bad hash")


def _check_beside(folder: Path, name: str, refuse_as: str) -> None:
    # A recipe may come from someone else: `rootfs = "/var/lib/secret.tar"` must not read what its sender couldn't.
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InvalidRequestError(f"{refuse_as}: {name[:80]!r} is outside the recipe's folder")
    if not path.exists():
        raise InvalidRequestError(f"{refuse_as}: {name[:80]!r} does not exist")


def _fingerprints(path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield name, content hash and permission bits of a file or of everything in a tree, in a fixed order."""
    tree = [path] if not path.is_dir() else sorted(path.rglob("*"))
    for entry in tree:
        status = entry.lstat()
        name = entry.relative_to(path).as_posix() if entry != path else ""
        if stat.S_ISLNK(status.st_mode):
            content = "link:" + str(entry.readlink())
        elif stat.S_ISDIR(status.st_mode):
            content = "directory"
        elif stat.S_ISREG(status.st_mode):
            with entry.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            raise InvalidRequestError(f"{entry.name!r} in the recipe is neither a file, a directory nor a link")
        yield name, content, stat.S_IMODE(status.st_mode)
