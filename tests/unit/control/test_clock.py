"""A sandbox's time counts while it can be used and stands still while it can't."""

from __future__ import annotations

import time

import pytest

from cellbox.control.clock import LifeClock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock, to be set."""
    current = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: current[0])
    return current


def test_it_counts_down_and_is_up(now: list[float]) -> None:
    clock = LifeClock(60)
    now[0] += 59.9
    assert not clock.is_up
    now[0] += 0.1
    assert clock.is_up
    assert clock.remaining_seconds == 0


def test_a_stopped_one_keeps_what_is_left(now: list[float]) -> None:
    clock = LifeClock(60)
    now[0] += 10
    clock.stop()
    now[0] += 1000
    clock.stop()
    assert not clock.is_up
    assert clock.remaining_seconds == 50
    clock.go_on()
    clock.go_on()
    now[0] += 49
    assert clock.remaining_seconds == 1
    now[0] += 1
    assert clock.is_up


def test_one_that_was_up_goes_on_with_all_of_its_time(now: list[float]) -> None:
    clock = LifeClock(60)
    now[0] += 61
    clock.stop()
    clock.go_on()
    assert clock.remaining_seconds == 60


def test_setting_it_counts_from_now_or_from_when_it_goes_on(now: list[float]) -> None:
    clock = LifeClock(60, remaining_seconds=5)
    clock.set(20)
    now[0] += 100
    assert clock.remaining_seconds == 20
    clock.go_on()
    clock.set(30)
    now[0] += 10
    assert (clock.ttl_seconds, clock.remaining_seconds) == (30, 20)
