"""A runsc that is missing, broken, too old or malicious gives a typed error in bounded time, and leaves nothing."""

import os
import time
from pathlib import Path

import pytest

from cellbox.engines.gvisor import commands, starts
from cellbox.engines.gvisor.engine import GvisorEngine
from cellbox.errors import EngineUnavailableError
from cellbox.testing.engine_conformance import open_descriptors

_STUBS = {
    "fails": "exit 1",
    "hangs": "sleep 60",
    "talks nonsense": "echo garbage",
    "floods stderr": "exec cat /dev/zero >&2",
    "crashes": "kill -SEGV $$",
    "is too old": 'case $1 in --version) echo "runsc version release-20221219.0";; *) {runsc} flags;; esac',
    "leaves a child": "sleep 60 & exec sleep 60",
    "fails at create": 'case "$*" in --version|flags) exec {runsc} "$@";; *) echo broken >&2; exit 3;; esac',
    "hangs at create": 'case "$*" in --version|flags) exec {runsc} "$@";; *) sleep 60;; esac',
    "floods at create": 'case "$*" in --version|flags) exec {runsc} "$@";; *) exec cat /dev/zero >&2;; esac',
    "pretends to create": 'case "$*" in --version|flags) exec {runsc} "$@";; *) exit 0;; esac',
}


@pytest.mark.parametrize("behaviour", _STUBS)
async def test_a_bad_runsc_makes_the_engine_unavailable(
    state: Path, runsc: Path, tmp_path: Path, behaviour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_INQUIRY_DEADLINE_S", 1.0)
    monkeypatch.setattr(starts, "_CREATE_DEADLINE_S", 0.5)
    stub = tmp_path / "runsc"
    stub.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{_STUBS[behaviour].replace('{runsc}', str(runsc))}\n")
    stub.chmod(0o755)
    before = open_descriptors()
    engine = GvisorEngine(state, runsc=stub)
    started = time.monotonic()
    with pytest.raises(EngineUnavailableError):
        await engine.start()
    assert time.monotonic() - started < 15
    assert not (await engine.probe()).usable
    await engine.aclose()
    assert open_descriptors() <= before


async def test_a_missing_runsc_makes_the_engine_unavailable(state: Path) -> None:
    engine = GvisorEngine(state, runsc=state / "nowhere")
    with pytest.raises(EngineUnavailableError, match="can't be started"):
        await engine.start()


async def test_without_a_runsc_anywhere_the_message_says_what_to_do(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("CELLBOX_RUNSC", raising=False)
    with pytest.raises(EngineUnavailableError, match="cellbox setup"):
        await GvisorEngine(state).start()
