"""A sandbox's log is bounded, keeps lines apart, and can be followed without missing any unseen."""

from __future__ import annotations

import asyncio

from cellbox.control.logs import SandboxLog
from cellbox.wire.messages import LogLine


def test_lines_are_kept_by_stream() -> None:
    log = SandboxLog()
    log.add(LogLine(stream="stdout", text="one\ntwo"))
    log.add(LogLine(stream="stderr", text="oops\r\n"))
    log.say("mine")
    assert log.text() == "one\ntwo\noops\n[cellbox] mine\n"
    assert log.text("stdout") == "one\ntwo\n"
    assert log.text("stderr", tail=1) == "[cellbox] mine\n"
    assert log.text(tail=0) == ""


def test_the_log_is_bounded() -> None:
    log = SandboxLog()
    for _ in range(300):
        log.add(LogLine(stream="stdout", text="x" * 100_000))
    assert len(log.text()) <= 1024 * 1024
    assert max(map(len, log.text().splitlines())) <= 8192


async def test_followers_see_what_is_there_what_comes_and_the_end() -> None:
    log = SandboxLog()
    log.say("before")
    seen: list[str] = []

    async def follow() -> None:
        async for line in log.follow():
            seen.append(line)  # noqa: PERF401 - what matters is that each comes by itself

    following = asyncio.ensure_future(follow())
    await asyncio.sleep(0)
    log.say("after")
    await asyncio.sleep(0.01)
    log.say("last")
    log.close()
    await following
    assert seen == ["[cellbox] before", "[cellbox] after", "[cellbox] last"]


async def test_a_follower_that_is_too_slow_is_told_what_it_missed() -> None:
    log = SandboxLog()
    log.say("first")
    lines = log.follow()
    assert await anext(lines) == "[cellbox] first"
    for number in range(3000):
        log.add(LogLine(stream="stdout", text=f"{number} " + "y" * 1000))
    assert "lines were dropped here" in await anext(lines)
    assert (await anext(lines)).endswith("y")
    await lines.aclose()  # pyright: ignore[reportAttributeAccessIssue]
