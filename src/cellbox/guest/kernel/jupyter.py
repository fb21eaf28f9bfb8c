"""The bridge's connection to a Jupyter kernel: the messaging protocol over `jupyter_client`'s session and zmq.

Imports both only when a connection is made, so that the bridge can say in words what is missing.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

_LAST_SECONDS = 1.0
"""For the second of reply and idle to come after the first: some kernels send only one of them after an interrupt."""


class KernelGoneError(Exception):
    """The kernel's process has ended."""


class Answer:
    """What has come back so far for one execution."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        self.count = 0
        self.error: tuple[str, str, list[str]] | None = None
        """Name, value and lines of the traceback."""
        self.is_idle = False
        self.has_reply = False
        self._since = 0.0

    @property
    def is_complete(self) -> bool:
        if self.is_idle and self.has_reply:
            return True
        return self._since > 0 and time.monotonic() - self._since > _LAST_SECONDS

    @property
    def patience(self) -> float | None:
        return _LAST_SECONDS / 5 if self._since else None

    def take(self, kind: str, content: dict[str, Any]) -> None:
        """Take note of a message that is no output."""
        if kind == "status" and content.get("execution_state") == "idle":
            self.is_idle = True
        elif kind == "execute_reply":
            self.has_reply = True
            self._take_count(content)
            if content.get("status") == "error":
                self._take_error(content)
        elif kind == "error":
            self._take_error(content)
        elif kind == "execute_input":
            self._take_count(content)
        if self.is_idle or self.has_reply:
            self._since = self._since or time.monotonic()

    def _take_count(self, content: dict[str, Any]) -> None:
        count = content.get("execution_count")
        self.count = count if isinstance(count, int) else self.count

    def _take_error(self, content: dict[str, Any]) -> None:
        lines = content.get("traceback")
        found = [str(line) for line in lines] if isinstance(lines, list) else []
        said = (str(content.get("ename") or ""), str(content.get("evalue") or ""), found)
        # Some kernels say less in the reply than in the event.
        if self.error is None or (any(said) and not any(self.error)):
            self.error = said


class Connection:
    """One kernel's channels. Raises `ImportError` when the template's Python has no `jupyter_client`."""

    def __init__(self, path: str) -> None:
        import zmq
        from jupyter_client.connect import write_connection_file
        from jupyter_client.session import Session

        self._zmq = zmq
        key = os.urandom(32).hex().encode()
        _, info = write_connection_file(path, ip="127.0.0.1", key=key)
        self._session = Session(key=key, signature_scheme=info["signature_scheme"])
        context = zmq.Context()
        self._sockets: dict[str, Any] = {}
        for name, kind in (("iopub", zmq.SUB), ("shell", zmq.DEALER), ("control", zmq.DEALER)):
            made = self._sockets[name] = context.socket(kind)
            made.setsockopt(zmq.LINGER, 0)
            made.setsockopt(zmq.RCVHWM, 0)  # Jupyter has no flow control: what is not taken would be lost
            if kind == zmq.SUB:
                made.setsockopt(zmq.SUBSCRIBE, b"")
            else:
                made.setsockopt(zmq.IDENTITY, self._session.bsession)
            made.connect(f"tcp://127.0.0.1:{info[f'{name}_port']}")
        # Signals come through here: a wait begun just after one would otherwise sleep through it.
        self._wake, writer = os.pipe()
        for end in (self._wake, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def wait_until_ready(self, seconds: float, is_alive: Callable[[], bool]) -> None:
        """Ask for the kernel's information until it answers and its output arrives.

        Raises `KernelGoneError` or `TimeoutError`.
        """
        deadline = time.monotonic() + seconds
        asked = 0.0
        answer = Answer("")
        while time.monotonic() < deadline:
            if not is_alive():
                raise KernelGoneError("it ended at once")
            if time.monotonic() - asked > 0.5:  # the first ones come before the subscription does
                answer = Answer(self._send("shell", "kernel_info_request", {}))
                asked = time.monotonic()
            self.wait(timeout=0.1)
            for _ in self.messages(answer):
                pass
            if answer.is_idle:
                return
        raise TimeoutError(f"no answer in {seconds:g} s")

    def execute(self, code: str, *, is_silent: bool) -> str:
        """Send code to be run. Returns the message's id."""
        content = {
            "code": code,
            "silent": is_silent,
            "store_history": not is_silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        return self._send("shell", "execute_request", content)

    def interrupt(self) -> None:
        """Ask the kernel to interrupt what it does."""
        self._send("control", "interrupt_request", {})

    def wait(self, *others: int, timeout: float | None = None) -> set[int]:
        """Wait for anything: from the kernel, on other descriptors, or a signal. Returns the descriptors ready."""
        poller = self._zmq.Poller()
        for made in self._sockets.values():
            poller.register(made, self._zmq.POLLIN)
        for fd in (self._wake, *others):
            poller.register(fd, self._zmq.POLLIN)
        ready = {fd for fd, _ in poller.poll(None if timeout is None else timeout * 1000)}
        if self._wake in ready and select.select([self._wake], [], [], 0)[0]:
            os.read(self._wake, 4096)
        return ready

    def messages(self, answer: Answer) -> Iterator[tuple[str, dict[str, Any], bool]]:
        """Yield what has come as (type, content, whether it belongs to `answer`); `answer` learns what is its own."""
        for name, made in self._sockets.items():
            while True:
                try:
                    parts = made.recv_multipart(self._zmq.NOBLOCK)
                except self._zmq.Again:
                    break
                try:
                    message = self._session.deserialize(self._session.feed_identities(parts)[1])
                except (ValueError, KeyError, TypeError):
                    continue  # not signed by our kernel
                kind, content = message["msg_type"], message["content"]
                is_ours = bool(answer.message_id) and message["parent_header"].get("msg_id") == answer.message_id
                if is_ours and (name == "iopub" or kind == "execute_reply"):
                    answer.take(kind, content)
                if name == "iopub":
                    yield kind, content, is_ours

    def _send(self, channel: str, kind: str, content: dict[str, Any]) -> str:
        message = self._session.msg(kind, content)
        self._session.send(self._sockets[channel], message)
        return str(message["header"]["msg_id"])
