"""asyncio in cells: top-level `await` and `asyncio.run()` both work, in one cell too.

A cell without a top-level `await` runs with no loop running, as a script does. One with it runs inside a loop that
lives as long as the kernel, so that tasks go on in the next such cell.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

_CANCEL_SECONDS = 0.5  # for a coroutine to tidy up in after an interrupt


class CellLoop:
    """The event loop of a kernel's main thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._run = asyncio.run
        asyncio.run = self._run_anywhere

    def begin_cell(self) -> None:
        """Make our loop the thread's current one again: `asyncio.run()` leaves none."""
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)

    def run(self, coroutine: Any) -> Any:
        """Run a cell's coroutine. An interrupt cancels what it awaits before it goes on."""
        assert self._loop is not None
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                self._loop.run_until_complete(asyncio.wait({task}, timeout=_CANCEL_SECONDS))
            raise

    def _run_anywhere(self, main: Any, **options: Any) -> Any:
        """`asyncio.run`; in a thread where a loop is running already (a library called from a cell that awaits)."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._run(main, **options)
        if threading.current_thread() is not threading.main_thread():
            return self._run(main, **options)
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.extend((True, self._run(main, **options)))
            except BaseException as error:
                outcome.extend((False, error))

        thread = threading.Thread(target=work, daemon=True, name="asyncio.run")
        thread.start()
        thread.join()
        if outcome[0]:
            return outcome[1]
        raise outcome[1]
