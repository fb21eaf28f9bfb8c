"""The few things that differ in kind between the two flavours: the generator maps `async_x` to `x`, `AsyncX` to `X`."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

T = TypeVar("T")

Source = Iterable[bytes]
AsyncSource = Iterable[bytes] | AsyncIterable[bytes]

Lock = threading.Lock


class AsyncLock:
    """`anyio.Lock`, made at its first use: importing this package loads no event loop."""

    def __init__(self) -> None:
        self._lock: Any = None

    async def __aenter__(self) -> None:
        if self._lock is None:
            import anyio

            self._lock = anyio.Lock()
        await self._lock.acquire()

    async def __aexit__(self, *exc_info: object) -> None:
        self._lock.release()


async def async_sleep(seconds: float) -> None:
    import anyio

    await anyio.sleep(seconds)


def sleep(seconds: float) -> None:
    time.sleep(seconds)


async def async_in_thread(function: Callable[[], T]) -> T:
    """Run something that blocks for long beside the event loop."""
    import anyio.to_thread

    return await anyio.to_thread.run_sync(function)


def in_thread(function: Callable[[], T]) -> T:
    return function()


async def async_notify(callback: Callable[[Any], object] | None, value: object) -> None:
    """Call a caller's function, which may itself be asynchronous."""
    if callback is not None:
        outcome = callback(value)
        if inspect.isawaitable(outcome):
            await outcome


def notify(callback: Callable[[Any], object] | None, value: object) -> None:
    if callback is not None:
        callback(value)


def async_shielded(seconds: float) -> AbstractContextManager[Any]:
    """Let a clean-up finish though the task is being cancelled, for so long at most."""
    import anyio

    return anyio.move_on_after(seconds, shield=True)


def shielded(seconds: float) -> AbstractContextManager[Any]:
    del seconds
    return nullcontext()


async def async_within(seconds: float, receive: Callable[..., Any]) -> Any:
    """Call a function that waits for a message, for so long at most. Raises `TimeoutError`."""
    import anyio

    with anyio.fail_after(seconds):
        return await receive()


def within(seconds: float, receive: Callable[..., Any]) -> Any:
    return receive(timeout=seconds)


def async_chunks(source: AsyncSource) -> AsyncIterator[bytes]:
    """Iterate over either kind of source."""
    return aiter(source) if isinstance(source, AsyncIterable) else _as_async(source)


async def _as_async(source: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in source:
        yield chunk


def chunks(source: Iterable[bytes]) -> Iterable[bytes]:
    return source


def async_scope() -> object:
    """What connections are bound to, beside the process: the running event loop."""
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None  # trio


def scope() -> object:
    return None
