"""Builds of templates in the background: started by a request, followed by others, remembered for a while."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import structlog

from cellbox import errors
from cellbox.control.tasks import Tasks
from cellbox.protocol.templates import BuildEnded, BuildEvent, BuildLine, BuildStatus, TemplateBuild
from cellbox.templates import events
from cellbox.templates.recipe import read_recipe
from cellbox.templates.templates import Templates

_AT_ONCE = 1  # a build keeps every core busy by itself
_MAX_WAITING = 8
_REMEMBERED = 50
_MAX_LINES = 5000

_log = structlog.stdlib.get_logger(__name__)


class _Build:
    """One build and the last lines of its log."""

    def __init__(self, build_id: str, name: str) -> None:
        self.id = build_id
        self.name = name
        self.status: BuildStatus = "queued"
        self.started_at = datetime.now(UTC)
        self.ended_at: datetime | None = None
        self.error = ""
        self.digest = ""
        self.lines: deque[str] = deque(maxlen=_MAX_LINES)
        self.line_count = 0
        self.changed = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self.status in ("done", "failed")

    def info(self) -> TemplateBuild:
        return TemplateBuild(
            id=self.id,
            name=self.name,
            status=self.status,
            started_at=self.started_at,
            ended_at=self.ended_at,
            error=self.error,
            digest=self.digest,
        )

    def say(self, line: str) -> None:
        self.lines.append(line)
        self.line_count += 1
        self.changed.set()

    def end(self, status: BuildStatus, error: str = "") -> None:
        self.status, self.error, self.ended_at = status, error, datetime.now(UTC)
        self.changed.set()


class Builds:
    """The builds of this daemon. They end with it; a template appears only when its build is done."""

    def __init__(self, templates: Templates, data_dir: Path, tasks: Tasks) -> None:
        self._templates = templates
        self._uploads = data_dir / "uploads"
        self._tasks = tasks
        self._builds: OrderedDict[str, _Build] = OrderedDict()
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._is_swept = False

    def new_folder(self) -> Path:
        """Make an empty folder for a recipe to be uploaded into. Whoever asks removes it unless it goes to `start`."""
        if not self._is_swept:  # what a daemon that was killed left; the data directory is ours alone
            shutil.rmtree(self._uploads, ignore_errors=True)
            self._is_swept = True
        folder = self._uploads / secrets.token_hex(8)
        folder.mkdir(mode=0o700, parents=True)
        return folder

    def start(self, folder: Path | None, *, name: str | None = None, replace: bool = True) -> TemplateBuild:
        """Build the recipe in `folder`, which is removed afterwards, in the background; without one, a built-in.

        Raises `InvalidRequestError` for a bad recipe, `TemplateExistsError` for a name that is taken and
        `CapacityError` when too many builds wait already; the folder stays the caller's then.
        """
        if folder is not None:
            name = name or read_recipe(folder).name
        elif name is None:
            raise errors.InvalidRequestError("name a built-in template, or send a recipe")
        if not replace and any(template.name == name for template in self._templates.list()):
            raise errors.TemplateExistsError(f"template {name!r} exists; pass `replace` to build it anew")
        if sum(not build.is_over for build in self._builds.values()) >= _MAX_WAITING:
            raise errors.CapacityError(f"{_MAX_WAITING} builds are waiting already", retry_after_seconds=30)
        build = _Build(secrets.token_hex(8), name)
        self._builds[build.id] = build
        for old in [old for old in self._builds.values() if old.is_over][: max(0, len(self._builds) - _REMEMBERED)]:
            del self._builds[old.id]
        self._tasks.start(self._run(build, folder, replace), name=f"build {build.id}")
        return build.info()

    def list(self) -> list[TemplateBuild]:
        """Recent builds, newest first."""
        return [build.info() for build in reversed(self._builds.values())]

    def get(self, build_id: str) -> TemplateBuild:
        """One build. Raises `NotFoundError`."""
        return self._find(build_id).info()

    async def follow(self, build_id: str, *, wait: bool = True) -> AsyncIterator[BuildEvent]:
        """Yield the log's lines and `BuildEnded` last; without `wait`, what there is now."""
        build = self._find(build_id)
        number = 0
        while True:
            first_kept = build.line_count - len(build.lines)
            if number < first_kept:
                yield BuildLine(line=f"[cellbox] {first_kept - number} lines were dropped here")
                number = first_kept
            lines, number = list(build.lines)[number - first_kept :], build.line_count
            for line in lines:
                yield BuildLine(line=line)
            if number < build.line_count:
                continue
            if build.is_over or not wait:
                yield BuildEnded(build=build.info())
                return
            build.changed.clear()
            await build.changed.wait()

    def _find(self, build_id: str) -> _Build:
        build = self._builds.get(build_id)
        if build is None:
            raise errors.NotFoundError(f"no build {build_id[:64]!r}")
        return build

    async def _run(self, build: _Build, folder: Path | None, replace: bool) -> None:
        try:
            async with self._turn:
                build.status = "building"
                async for event in self._templates.build(folder or build.name, name=build.name, replace=replace):
                    _take(build, event)
            if not build.is_over:
                build.end("failed", "the build ended without a result")
        except errors.APIError as error:
            build.say(f"error: {error.message}")
            build.end("failed", error.message)
        except asyncio.CancelledError:
            build.end("failed", "the daemon was stopped")
            raise
        except Exception:
            build.end("failed", "internal error; the daemon's log has more")
            raise
        finally:
            if folder is not None:
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))
            _log.info("template build", build_id=build.id, template=build.name, status=build.status)


def _take(build: _Build, event: events.BuildEvent) -> None:
    """Turn what the builder tells into lines and states."""
    label = "" if event.template == build.name else f"{event.template}: "
    match event:
        case events.StepStarted():
            if not label:
                build.status = "baking" if event.step == "bake" else "building"
            build.say(f"==> {label}{event.step}")
        case events.StepLog():
            build.say(event.line)
        case events.StepDone():
            build.say(f"    done in {event.seconds:.1f} s")
        case events.StepFailed():
            build.say(f"    failed after {event.seconds:.1f} s: {event.reason}")
        case events.BuildDone():
            if not label:
                build.digest = event.digest
                build.end("done")
