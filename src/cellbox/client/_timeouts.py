"""How long to wait for whom: the daemon enforces the time of commands and cells, the client only outlasts it."""

from __future__ import annotations

from cellbox.protocol.commands import MAX_TIMEOUT_SECONDS

CREATE_SECONDS = 300.0
"""A cold boot on a busy machine, or a template that is built first."""
SAVE_SECONDS = 180.0
"""Gigabytes of memory written to a slow disk, or read from it."""
_QUEUE_SECONDS = 3600.0


def asked_seconds(timeout_seconds: float | None) -> float:
    """The time to ask for: `None` means as long as the daemon allows."""
    return MAX_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds


def command_silence_seconds(timeout_seconds: float | None, margin_seconds: float) -> float:
    """How long the daemon may say nothing while it runs a command."""
    return asked_seconds(timeout_seconds) + margin_seconds


def cell_silence_seconds(timeout_seconds: float | None, margin_seconds: float) -> float:
    """The same for a cell, which may first wait for others in its context. TCP keep-alive finds a dead host sooner."""
    return asked_seconds(timeout_seconds) + margin_seconds + _QUEUE_SECONDS
