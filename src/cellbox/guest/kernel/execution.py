"""One cell on its way through a kernel: output out, deadline, interrupts, and what is made of a kernel that dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import Any, Literal

from cellbox.guest.channel import Stream
from cellbox.guest.kernel.launcher import Kernel
from cellbox.wire.frames import Kind
from cellbox.wire.messages import CellDone, CellError, LateOutput, RunCell

Reason = Literal["timeout", "cancelled", "interrupt", "restart", "closed"]
_AT_ONCE = ("restart", "closed")
"""Reasons not to ask first: the kernel's state is not wanted any more."""

_GRACE_SECONDS = 1.0
"""How long each step of an interrupt may take. Two steps, so a cell ends at most this twice after its deadline."""
_DEATH_SECONDS = 0.1  # between a kernel hanging up and the news of how it ended
_NEWS_SECONDS = 0.5
"""For the zygote to report an end that has surely come. It never does when a user's process killed the zygote."""
_SENTENCES: dict[str, str] = {
    "timeout": "The cell was stopped at its time limit of {limit:g} s",
    "cancelled": "The cell was stopped because its caller gave it up",
    "interrupt": "The cell was interrupted",
    "restart": "The kernel was restarted",
    "closed": "The context was closed",
}


class Execution:
    """Runs one cell. `stop` may be called at any time."""

    def __init__(self, kernel: Kernel, stream: Stream, request: RunCell) -> None:
        self._kernel = kernel
        self._stream = stream
        self._request = request
        self._stop: asyncio.Future[Reason] = asyncio.get_running_loop().create_future()
        self.is_dead = False
        """True once the kernel is gone and must be replaced."""

    def stop(self, reason: Reason) -> None:
        """End the cell early: at once for a restart, else by interrupting it."""
        if not self._stop.done():
            self._stop.set_result(reason)

    async def run(self) -> CellDone:
        """Run the cell to its end, whatever that is, with all its output sent before the answer."""
        kernel, request = self._kernel, self._request
        loop = asyncio.get_running_loop()
        started = loop.time()
        kernel.note_children()
        reseed, kernel.must_reseed = kernel.must_reseed, False
        asked = {"op": "run", "code": request.code, "env": request.env, **({"reseed": True} if reseed else {})}
        document = json.dumps(asked)
        timer = None
        if request.timeout_seconds is not None:
            timer = loop.call_later(request.timeout_seconds, self.stop, "timeout")
        pump = asyncio.ensure_future(self._pump(document.encode()))
        watch = asyncio.ensure_future(self._watch())
        try:
            step = await watch
            fields = await pump
        finally:
            for task in (pump, watch):
                task.cancel()
            if timer is not None:
                timer.cancel()
        duration = (loop.time() - started) * 1000
        done = self._read_answer(fields, step)
        if done is None:
            self.is_dead = True
            done = await self._obituary(step)
        else:
            kernel.note_end_of_cell()
            kernel.link.become_idle()
        return done if done.duration_ms else _replace(done, duration_ms=duration)

    async def _pump(self, document: bytes) -> dict[str, Any] | None:
        """Pass output on until the answer. None when the kernel is gone, or has answered nonsense."""
        link = self._kernel.link
        late = link.late_bytes()
        if any(late):
            await self._stream.emit(LateOutput(stdout=late[0], stderr=late[1]))
        with contextlib.suppress(OSError):  # it has died since the last cell; what it said may still be read
            await link.request(document)
        while (item := await link.next()) is not None:
            if item.kind == Kind.DATA:
                await self._stream.send(bytes(item.payload), item.channel)
            elif item.kind == Kind.MESSAGE:
                await self._stream.relay(bytes(item.payload))
            else:
                try:
                    answer = json.loads(item.payload)
                except (ValueError, RecursionError):
                    return None
                return answer if isinstance(answer, dict) else None
        return None

    async def _watch(self) -> Literal["", "interrupted", "killed"]:
        """Wait for the answer or the kernel's end, and see to it that one of them comes after a stop."""
        kernel = self._kernel
        self._stream.on_cancel(lambda: self.stop("cancelled"))
        await self._first(None, self._stop)
        if not self._stop.done() or self._is_over:
            await self._bury()
            return ""
        kernel.link.make_room()
        if self._stop.result() not in _AT_ONCE:
            for interrupt in (kernel.interrupt, kernel.interrupt_hard):
                interrupt()
                await self._first(_GRACE_SECONDS)
                if self._is_over:
                    kernel.end_interrupted()
                    await self._bury()
                    return "interrupted"
        await kernel.kill()
        return "killed"

    @property
    def _is_over(self) -> bool:
        link = self._kernel.link
        return link.has_answered or link.is_closed or self._kernel.ended.done()

    async def _first(self, seconds: float | None, *others: asyncio.Future[Any]) -> None:
        awaited = [self._kernel.link.milestone, self._kernel.ended, *others]
        await asyncio.wait(awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def _bury(self) -> None:
        """If the kernel is gone, take what it left in its pipes."""
        kernel = self._kernel
        if kernel.link.has_answered and not kernel.ended.done() and not kernel.link.is_closed:
            return
        if not kernel.ended.done():
            await asyncio.wait([kernel.ended], timeout=_DEATH_SECONDS)
        await kernel.kill()

    def _read_answer(self, fields: dict[str, Any] | None, step: str) -> CellDone | None:
        """Make the outcome of what the kernel says. The user's code can forge that, so any part may be wrong."""
        if fields is None or step == "killed":
            return None
        try:
            error = fields.get("error")
            done = CellDone(
                outcome="completed",
                exit=int(fields["exit"]) & 0xFFFFFFFF if int(fields["exit"]) >= 0 else int(fields["exit"]) & 0xFF,
                error=CellError(**{name: str(error[name]) for name in ("name", "value", "traceback")})
                if error
                else None,
                execution_count=int(fields["execution_count"]) if "execution_count" in fields else 0,
                duration_ms=float(fields["duration_ms"]),
                hint=str(fields["hint"]),
                dropped_displays=int(fields["dropped_displays"]),
                background_threads=int(fields["background_threads"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        if step != "interrupted":
            return done
        return _replace(
            done, outcome="interrupted", reason=self._stop.result(), hint=f"{self._sentence()}; variables are kept."
        )

    async def _obituary(self, step: str) -> CellDone:
        """Say how a kernel ended that gave no answer."""
        await self._kernel.kill()
        if not self._kernel.ended.done():
            await asyncio.wait([self._kernel.ended], timeout=_NEWS_SECONDS)
        lost = "the kernel was replaced, so variables and imports are gone."
        if step == "killed" and self._stop.result() == "closed":
            return CellDone(outcome="killed", reason="closed", state_kept=False, exit=137, hint=f"{self._sentence()}.")
        if step == "killed":
            did = (
                f"{self._sentence()}; it did not react, "
                if self._stop.result() not in _AT_ONCE
                else f"{self._sentence()}; "
            )
            return CellDone(
                outcome="killed", reason=self._stop.result(), state_kept=False, exit=137, hint=f"{did}{lost}"
            )
        status = self._kernel.ended.result() if self._kernel.ended.done() else None
        if step == "interrupted" and status is not None and os.WIFSIGNALED(status):
            return CellDone(  # it knows no better answer to SIGINT than to end
                outcome="killed",
                reason=self._stop.result(),
                state_kept=False,
                exit=137,
                hint=f"{self._sentence()}; that ended its kernel, {lost}",
            )
        if self._kernel.ran_out_of_memory:
            reason, code, why = "out_of_memory", 137, "ran out of memory"
        elif status is not None and os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            reason, code, why = "signal", 128 + number, f"was ended by signal {number}"
        else:
            code = os.waitstatus_to_exitcode(status) if status is not None else 1
            reason, why = "exit", f"exited with code {code}"
        return CellDone(
            outcome="died",
            reason=reason,
            state_kept=False,
            exit=code,
            hint=f"The {self._kernel.title} process {why}; {lost}",
        )

    def _sentence(self) -> str:
        return _SENTENCES[self._stop.result()].format(limit=self._request.timeout_seconds or 0)


def _replace(done: CellDone, **changes: Any) -> CellDone:
    fields = {name: getattr(done, name) for name in CellDone.__slots__ if name != "type"}
    return CellDone(**{**fields, **changes})
