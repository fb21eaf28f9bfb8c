"""The package's front: what there is, what can be built, and building it. `control` and the CLI talk to this alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from pathlib import Path

from cellbox.engines.base import Engine
from cellbox.errors import InvalidRequestError, TemplateBuildError, TemplateExistsError, UnknownTemplateError
from cellbox.templates import bake, rootfs
from cellbox.templates.builder import Builder
from cellbox.templates.catalogue import ALIASES, Catalogue, Label, Template
from cellbox.templates.events import BuildDone, BuildEvent, Progress, stream
from cellbox.templates.packages import Downloads, locked
from cellbox.templates.recipe import Recipe, check_name, read_recipe

RECIPES = Path(__file__).parent / "recipes"
_IMAGE_BASE = "base"
"""Whose sandbox unpacks images."""


def builtin_names() -> list[str]:
    """Return the templates whose recipes come with Cellbox, built or not."""
    return sorted(path.parent.name for path in RECIPES.glob("*/recipe.toml"))


class Templates:
    """Templates of one installation. The engine must be started before anything is built or baked."""

    def __init__(self, data_dir: Path, engine: Engine) -> None:
        self._engine = engine
        self._catalogue = Catalogue(data_dir / "templates")
        self._downloads = Downloads(data_dir / "cache")
        self._builder = Builder(engine, self._catalogue, self._downloads)
        self._ready: set[str] = set()

    def list(self) -> list[Template]:
        """Return the built templates, sorted by name."""
        return self._catalogue.list()

    def get(self, name: str) -> Template:
        """Return the template a user means by `name`, ready to boot. Raises `UnknownTemplateError`."""
        template = self._catalogue.resolve(name)
        if template.digest not in self._ready:  # built by an older installation: give it today's guest
            bake.install_guest(template)
            self._ready.add(template.digest)
        return template

    def tools(self, name: str) -> list[str]:
        """Return what a template's maker thinks worth naming; nothing for one that is gone."""
        template = self._catalogue.find(name)
        return template.label.tools if template is not None else []

    def rootfs(self, digest: str) -> Path | None:
        """Return the root filesystem of a template's content, whatever its name is now; None when it is gone."""
        return self._catalogue.directory(digest) / "rootfs" if self._catalogue.manifest(digest) is not None else None

    def baked_image(self, template: Template) -> Path | None:
        """Return the checkpoint to restore, or None if the template must be booted (or `ensure`d first)."""
        return bake.baked_image(template, self._engine)

    async def bake(self, template: Template) -> None:
        """Make the checkpoint of a built template if none fits. Raises `TemplateBuildError`."""
        await self._finish(template, lambda _: None, was_built=False, started=time.monotonic())

    def build(self, source: Path | str, *, name: str | None = None, replace: bool = True) -> AsyncIterator[BuildEvent]:
        """Build a recipe (its folder, or the name of a built-in one) and what it is based on.

        Yields events as it goes, the last of them `BuildDone`, or raises. The same content is never built twice.

        Raises:
            InvalidRequestError: the recipe is not good.
            TemplateExistsError: the name is taken and `replace` is False.
            TemplateBuildError: a step failed; nothing of the build stays.
        """

        async def work(emit: Callable[[BuildEvent], None]) -> None:
            recipe = self._read(source)
            label_name = check_name(name or recipe.name)
            if not replace and self._catalogue.find(label_name) is not None:
                raise TemplateExistsError(f"template {label_name!r} exists; pass `replace` to build it anew")
            if not _is_builtin(recipe) and label_name in builtin_names():
                raise InvalidRequestError(f"{label_name!r} is the name of a template of Cellbox's own; choose another")
            await self._build(recipe, label_name, emit)

        return stream(work)

    def ensure(self, name: str) -> AsyncIterator[BuildEvent]:
        """Make a template ready: build a built-in one that is missing or out of date, bake one that is not baked.

        Yields events; none but `BuildDone` when all is there. Raises `UnknownTemplateError` for a name that is
        neither built nor built in.
        """

        async def work(emit: Callable[[BuildEvent], None]) -> None:
            target = name if self._catalogue.find(name) else ALIASES.get(name, name)
            if target in builtin_names():
                await self._build(self._read(target), target, emit)
                return
            template = self._catalogue.resolve(name)
            await self._finish(template, emit, was_built=False, started=time.monotonic())

        return stream(work)

    async def delete(self, name: str, *, in_use: Collection[str] = ()) -> None:
        """Take a name away, and its content unless another name or a sandbox (`in_use`, digests) needs it.

        Raises `TemplateNotFoundError`.
        """
        self._catalogue.remove(name)
        await self.sweep(in_use)

    async def sweep(self, in_use: Collection[str] = ()) -> None:
        """Remove contents that nothing leads to, except those `in_use`, and what interrupted builds left."""
        for digest in self._catalogue.unused(in_use):
            self._catalogue.forget(digest)
            await rootfs.remove_tree(self._catalogue.directory(digest))
        now = time.time()
        for leftover in (self._catalogue.root / "building").glob("*"):
            with suppress(OSError):
                if now - leftover.stat().st_mtime > 24 * 3600:
                    await rootfs.remove_tree(leftover)

    def _read(self, source: Path | str) -> Recipe:
        if isinstance(source, Path):
            return read_recipe(source)
        target = ALIASES.get(source, source)
        if target not in builtin_names():
            raise UnknownTemplateError(
                f"no built-in template {source[:80]!r}; there are {', '.join(builtin_names())}",
                details={"templates": builtin_names()},
            )
        return read_recipe(RECIPES / target)

    async def _build(self, recipe: Recipe, name: str, emit: Callable[[BuildEvent], None]) -> Template:
        started = time.monotonic()
        progress = Progress(name, emit)
        base = await self._base_of(recipe, progress, emit)
        digest = await asyncio.to_thread(recipe.digest, base.digest if base else "")
        was_built = False
        if self._catalogue.manifest(digest) is None:
            async with locked(self._catalogue.lock_path(digest)):
                if self._catalogue.manifest(digest) is None:  # another build may have come first
                    await self._builder.build(recipe, base, digest, progress)
                    was_built = True
        file = recipe.file
        label = Label(
            digest=digest,
            base=file.base,
            description=file.description,
            category=file.category,
            tools=file.tools,
            is_builtin=_is_builtin(recipe),
            pool=file.pool,
        )
        self._catalogue.point(name, label)
        template = self._catalogue.find(name)
        if template is None:
            raise TemplateBuildError(f"template {name!r} was removed while it was built")
        await self._finish(template, emit, was_built=was_built, started=started)
        return template

    async def _base_of(self, recipe: Recipe, progress: Progress, emit: Callable[[BuildEvent], None]) -> Template | None:
        if recipe.file.debian:
            return None
        name = recipe.file.base or _IMAGE_BASE
        if name not in builtin_names():
            return self._catalogue.resolve(name)
        base_recipe = read_recipe(RECIPES / name)
        prefetch = asyncio.create_task(self._prefetch(recipe, progress))
        try:
            return await self._build(base_recipe, name, emit)
        finally:
            # Wheels go on arriving in the cache while the base is built; the build proper then finds them there.
            await asyncio.gather(prefetch, return_exceptions=True)

    async def _prefetch(self, recipe: Recipe, progress: Progress) -> None:
        if recipe.file.base and self._catalogue.find(recipe.file.base) is None and recipe.file.python:
            async with progress.step("download Python packages meanwhile") as step:
                await self._downloads.wheels(recipe, recipe.file.python, step)

    async def _finish(
        self, template: Template, emit: Callable[[BuildEvent], None], *, was_built: bool, started: float
    ) -> None:
        if bake.baked_image(template, self._engine) is None:
            async with Progress(template.name, emit).step("bake") as step:
                await bake.bake(template, self._engine, step)
        self._ready.add(template.digest)
        seconds = time.monotonic() - started
        emit(BuildDone(template=template.name, digest=template.digest, seconds=seconds, was_built=was_built))


def _is_builtin(recipe: Recipe) -> bool:
    return recipe.folder.parent == RECIPES
