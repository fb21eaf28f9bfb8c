"""Builds one root filesystem from one recipe: start, packages, files, steps, check; whole or not at all.

What comes from Debian's archive is bootstrapped on the host (`bootstrap.py`); everything else that runs, runs in a
sandbox (`sandboxed.py`). Downloads happen while the root filesystem is bootstrapped or copied.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from cellbox.engines.base import Engine
from cellbox.templates import rootfs
from cellbox.templates.bootstrap import bootstrap
from cellbox.templates.catalogue import Catalogue, Manifest, Template
from cellbox.templates.contents import find_packages, find_python, find_suite
from cellbox.templates.events import Progress, Step, StepError
from cellbox.templates.images import Image, oci_image, tar_image
from cellbox.templates.packages import Downloads
from cellbox.templates.recipe import Recipe
from cellbox.templates.sandboxed import INPUT, INSIDE, OUTPUT, Workbench

_INSTALL_DEBS = f"""
apt-get install --yes --quiet --no-install-recommends -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-unsafe-io \\
    -o APT::Sandbox::User=root -o Dir::Cache::archives=/tmp/ {INPUT}/debs/*.deb
rm -rf /var/cache/apt/*.bin /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log /var/log/alternatives.log
"""
_INSTALL_WHEELS = f"""
python3 -m pip install --quiet --no-index --no-cache-dir --no-compile --no-warn-script-location \\
    --find-links {INPUT}/wheels $PIP_DEPENDENCIES --requirement {INPUT}/wheels/requirements.txt
# Only saves the first import time; a file for another Python that doesn't compile is no failure.
python3 -m compileall -q -q -j 0 -x '/tests?/' \\
    $(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))') || true
"""


class Builder:
    """Builds recipes into the catalogue's building area. Makes no decision about names."""

    def __init__(self, engine: Engine, catalogue: Catalogue, downloads: Downloads) -> None:
        self._engine = engine
        self._catalogue = catalogue
        self._downloads = downloads

    async def build(self, recipe: Recipe, base: Template | None, digest: str, progress: Progress) -> Manifest:
        """Build what `digest` names and add it to the catalogue.

        `base` is what the recipe derives from; for an image it is the template whose sandbox unpacks it.
        Raises `TemplateBuildError`; nothing of a failed build stays.
        """
        started = time.monotonic()
        directory = self._catalogue.new_directory()
        try:
            build = _Build(self, recipe, base, directory, progress)
            await build.run()
            async with progress.step("check"):
                contents = await rootfs.verify(build.root)
                manifest = Manifest(
                    digest=digest,
                    base_digest=base.digest if base else "",
                    suite=build.suite,
                    python=find_python(build.root),
                    env=build.env,
                    user=recipe.file.user or (base.user if base and recipe.file.base else ""),
                    start_command=recipe.file.start_command,
                    defaults=recipe.file.defaults,
                    created_at=datetime.now(UTC),
                    build_seconds=round(time.monotonic() - started, 1),
                    size_bytes=contents.size_bytes,
                    files=contents.files,
                    packages=find_packages(build.root),
                )
                shutil.rmtree(build.inputs, ignore_errors=True)
                self._catalogue.add(directory, manifest)
            return manifest
        except BaseException:
            await asyncio.shield(rootfs.remove_tree(directory))
            raise

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def downloads(self) -> Downloads:
        return self._downloads


class _Build:
    """One build in progress."""

    def __init__(
        self, builder: Builder, recipe: Recipe, base: Template | None, directory: Path, progress: Progress
    ) -> None:
        self.root = directory / "rootfs"
        self.inputs = directory / "in"
        self.env: dict[str, str] = {}
        self.suite = ""
        self._builder = builder
        self._recipe = recipe
        self._base = base
        self._progress = progress
        self._downloads = builder.downloads
        self.inputs.mkdir()

    async def run(self) -> None:
        file = self._recipe.file
        if file.debian:
            await self._from_debian(file.debian)
        elif self._recipe.archive is not None:
            await self._from_image(self._recipe.archive)
        else:
            await self._from_base()
        self.env |= file.env
        if file.debian:
            await self._sandboxed("build the private interpreter", self._build_runtime)
            await self._sandboxed("lay out", lambda bench, step: bench.program("lay_out", ["/"], step))
        if file.apt and not file.debian:
            await self._sandboxed("install Debian packages", self._install_debs)
        if self._needs_wheels:
            await self._sandboxed("install Python packages", self._install_wheels)
        if self._recipe.files is not None:
            await self._sandboxed("copy files", self._copy_files)
        for number, script in enumerate(file.run, 1):
            await self._sandboxed(
                f"run {number}: {_first_line(script)}", lambda bench, step, script=script: bench.shell(script, step)
            )

    @property
    def _needs_wheels(self) -> bool:
        return bool(self._recipe.file.pip or self._recipe.lock)

    async def _from_debian(self, suite: str) -> None:
        self.suite = suite

        async def make_root() -> None:
            async with self._progress.step(f"bootstrap Debian {suite}") as step:
                await bootstrap(suite, self._recipe.file.apt, self.root, step)

        await _together(make_root(), self._download_wheels(self._recipe.file.python))

    async def _from_base(self) -> None:
        base = self._base
        assert base is not None
        self.suite, self.env = base.manifest.suite, dict(base.env)

        async def copy() -> None:
            async with self._progress.step(f"copy {base.name}") as step:
                await rootfs.copy_tree(base.rootfs, self.root, step)

        status = rootfs.read_file(base.rootfs, "/var/lib/dpkg/status")
        await _together(copy(), self._download_debs(status), self._download_wheels(base.manifest.python))

    async def _from_image(self, archive: Path) -> None:
        base = self._base
        assert base is not None
        self.root.mkdir(mode=0o755)
        async with self._progress.step(f"unpack {archive.name}") as step:
            image = await oci_image(archive) if archive.is_dir() else tar_image(archive)
            self.env = dict(image.env)
            await self._unpack(image, base, step)
        self.suite = find_suite(self.root)
        status = rootfs.read_file(self.root, "/var/lib/dpkg/status")
        await _together(self._download_debs(status), self._download_wheels(find_python(self.root)))

    async def _unpack(self, image: Image, base: Template, step: Step) -> None:
        bench = Workbench(self._builder.engine, base.rootfs, {})
        layers = [f"{INPUT}/{layer}" for layer in image.layers]
        await bench.program("unpack", layers, step, inputs=image.folder, output=self.root)
        await rootfs.verify(self.root)
        await bench.program("lay_out", [OUTPUT], step, output=self.root)

    async def _download_debs(self, status: bytes | None) -> None:
        names = self._recipe.file.apt
        if not names:
            return
        async with self._progress.step("download Debian packages") as step:
            if status is None or not self.suite:
                raise StepError("`apt` needs a template that is a Debian of a named suite")
            debs = await self._downloads.debs(names, self.suite, status, step)
            await asyncio.to_thread(_link_tree, debs, self.inputs / "debs")

    async def _download_wheels(self, python: str) -> None:
        if not self._needs_wheels:
            return
        async with self._progress.step("download Python packages") as step:
            if not python:
                raise StepError("`pip` needs a template with a Python 3 in /usr/bin or /usr/local/bin")
            wheels = await self._downloads.wheels(self._recipe, python, step)
            await asyncio.to_thread(_link_tree, wheels, self.inputs / "wheels")

    async def _sandboxed(self, name: str, work: Callable[[Workbench, Step], Awaitable[None]]) -> None:
        async with self._progress.step(name) as step:
            await work(Workbench(self._builder.engine, self.root, self.env), step)

    async def _build_runtime(self, bench: Workbench, step: Step) -> None:
        await bench.shell(f"exec python3 -I {INPUT}/build_runtime.py", step, inputs=INSIDE)

    async def _install_debs(self, bench: Workbench, step: Step) -> None:
        await bench.shell(_INSTALL_DEBS, step, inputs=self.inputs)

    async def _install_wheels(self, bench: Workbench, step: Step) -> None:
        dependencies = "--no-deps" if self._recipe.lock else ""
        await bench.shell(f"PIP_DEPENDENCIES={dependencies}\n{_INSTALL_WHEELS}", step, inputs=self.inputs)

    async def _copy_files(self, bench: Workbench, step: Step) -> None:
        source = self._recipe.files
        assert source is not None
        await asyncio.to_thread(shutil.copytree, source, self.inputs / "files", symlinks=True)
        await bench.program("copy_files", [f"{INPUT}/files"], step, inputs=self.inputs)


async def _together(*work: Awaitable[None]) -> None:
    """Run work at the same time; the first failure cancels the rest and is the one that is told."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _link_tree(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        try:
            os.link(path, target / path.name)
        except OSError:  # the cache may be on another file system
            shutil.copy(path, target / path.name)


def _first_line(script: str) -> str:
    line = re.sub(r"\s+", " ", script.strip())
    return line if len(line) <= 60 else line[:57] + "…"
