"""Builds in the background: their states, their bounded log, and what they leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellbox import errors
from cellbox.control import builds as builds_module
from cellbox.control.builds import Builds
from cellbox.control.tasks import Tasks
from cellbox.protocol.templates import BuildEnded, BuildLine
from cellbox.templates import events


class ScriptedTemplates:
    """Yields the given events for every build."""

    def __init__(self, *script: events.BuildEvent | Exception) -> None:
        self.script = script
        self.gate = asyncio.Event()
        self.gate.set()

    def list(self) -> list[Any]:
        return []

    async def build(self, source: Path, *, name: str, replace: bool) -> AsyncIterator[events.BuildEvent]:
        for event in self.script:
            await self.gate.wait()
            if isinstance(event, Exception):
                raise event
            yield event


GOOD = (
    events.StepStarted(template="base", step="install"),
    events.StepLog(template="base", step="install", line="unpacking"),
    events.StepDone(template="base", step="install", seconds=1),
    events.BuildDone(template="base", digest="d0", seconds=1, was_built=True),
    events.StepStarted(template="mine", step="bake"),
    events.BuildDone(template="mine", digest="d1", seconds=2, was_built=True),
)


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    tasks = Tasks()
    yield tasks
    await tasks.aclose()


def start(builds: Builds) -> Any:
    folder = builds.new_folder()
    (folder / "recipe.toml").write_text('name = "mine"\nbase = "base"\n')
    return builds.start(folder)


async def test_a_build_that_succeeds(tmp_path: Path, tasks: Tasks) -> None:
    builds = Builds(ScriptedTemplates(*GOOD), tmp_path, tasks)  # type: ignore[arg-type]
    build = start(builds)
    assert (build.name, build.status) == ("mine", "queued")
    seen = [event async for event in builds.follow(build.id)]
    assert isinstance(seen[-1], BuildEnded)
    assert (seen[-1].build.status, seen[-1].build.digest) == ("done", "d1")
    lines = [event.line for event in seen if isinstance(event, BuildLine)]
    assert lines == ["==> base: install", "unpacking", "    done in 1.0 s", "==> bake"]
    assert builds.get(build.id) == seen[-1].build
    await asyncio.sleep(0.05)
    assert list((tmp_path / "uploads").iterdir()) == []


async def test_a_build_that_fails_says_why(tmp_path: Path, tasks: Tasks) -> None:
    failure = errors.TemplateBuildError("step 'install': it ended with exit code 100")
    builds = Builds(ScriptedTemplates(*GOOD[:2], failure), tmp_path, tasks)  # type: ignore[arg-type]
    build = start(builds)
    *lines, last = [event async for event in builds.follow(build.id)]
    assert isinstance(last, BuildEnded)
    assert (last.build.status, last.build.error) == ("failed", failure.message)
    assert lines[-1] == BuildLine(line=f"error: {failure.message}")


async def test_logs_are_bounded_and_say_what_is_missing(
    tmp_path: Path, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds_module, "_MAX_LINES", 10)
    script = [events.StepLog(template="mine", step="s", line=str(number)) for number in range(100)]
    builds = Builds(ScriptedTemplates(*script, GOOD[-1]), tmp_path, tasks)  # type: ignore[arg-type]
    build = start(builds)
    while builds.get(build.id).status != "done":
        await asyncio.sleep(0)
    lines = [event.line async for event in builds.follow(build.id) if isinstance(event, BuildLine)]
    assert lines == ["[cellbox] 90 lines were dropped here", *map(str, range(90, 100))]


async def test_one_at_a_time_and_few_in_the_queue(tmp_path: Path, tasks: Tasks) -> None:
    templates = ScriptedTemplates(*GOOD)
    templates.gate.clear()
    builds = Builds(templates, tmp_path, tasks)  # type: ignore[arg-type]
    started = [start(builds) for _ in range(8)]
    await asyncio.sleep(0.01)
    assert sorted(build.status for build in builds.list()) == ["building", *["queued"] * 7]
    with pytest.raises(errors.CapacityError):
        start(builds)
    without_waiting = [event async for event in builds.follow(started[0].id, wait=False)]
    assert len(without_waiting) == 1
    templates.gate.set()
    for build in started:
        async for _ in builds.follow(build.id):
            pass
    assert {build.status for build in builds.list()} == {"done"}


async def test_leftovers_of_a_killed_daemon_are_removed(tmp_path: Path, tasks: Tasks) -> None:
    (tmp_path / "uploads" / "old").mkdir(parents=True)
    builds = Builds(ScriptedTemplates(), tmp_path, tasks)  # type: ignore[arg-type]
    assert list((tmp_path / "uploads").iterdir()) == [builds.new_folder()] or not (tmp_path / "uploads/old").exists()


async def test_an_unknown_build(tmp_path: Path, tasks: Tasks) -> None:
    with pytest.raises(errors.NotFoundError):
        Builds(ScriptedTemplates(), tmp_path, tasks).get("nope")  # type: ignore[arg-type]
