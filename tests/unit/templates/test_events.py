"""A step that failed is told as failed and raised, whatever the consumer does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cellbox.errors import TemplateBuildError
from cellbox.templates.commands import host_environment, run_command
from cellbox.templates.events import BuildEvent, Progress, StepDone, StepFailed, StepLog, StepStarted, stream

Emit = Callable[[BuildEvent], None]


async def test_failed_command_is_a_failed_step_with_exit_code_and_tail() -> None:
    events: list[BuildEvent] = []

    async def work(emit: Emit) -> None:
        async with Progress("t", emit).step("fail") as step:
            await run_command(["sh", "-c", "echo out; echo err >&2; exit 3"], step, environment=host_environment())

    async def collect() -> None:
        async for event in stream(work):
            events.append(event)  # noqa: PERF401 - what came before the failure is wanted

    with pytest.raises(TemplateBuildError, match="exit code 3") as caught:
        await collect()
    assert [type(event) for event in events] == [StepStarted, StepLog, StepLog, StepFailed]
    failed = events[-1]
    assert isinstance(failed, StepFailed)
    assert (failed.exit_code, failed.log_tail) == (3, "out\nerr")
    assert caught.value.details["log_tail"] == "out\nerr"


async def test_done_step_is_told_with_its_time() -> None:
    async def work(emit: Emit) -> None:
        async with Progress("t", emit).step("work"):
            pass

    events = [event async for event in stream(work)]
    assert isinstance(events[-1], StepDone)


async def test_missing_program_is_told() -> None:
    async def work(emit: Emit) -> None:
        async with Progress("t", emit).step("work") as step:
            await run_command(["/no/such/program"], step, environment={})

    with pytest.raises(TemplateBuildError, match="not installed"):
        [event async for event in stream(work)]


async def test_closing_the_stream_ends_the_work() -> None:
    ended = asyncio.Event()

    async def work(emit: Emit) -> None:
        try:
            async with Progress("t", emit).step("wait"):
                await asyncio.Event().wait()
        finally:
            ended.set()

    events = stream(work)
    await anext(events)
    await events.aclose()  # pyright: ignore[reportAttributeAccessIssue]
    assert ended.is_set()


def test_environment_for_programs_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "canary")
    monkeypatch.setenv("https_proxy", "proxy")
    assert "SECRET_TOKEN" not in host_environment(network=True)
    assert "https_proxy" not in host_environment()
    assert host_environment(network=True)["https_proxy"] == "proxy"
