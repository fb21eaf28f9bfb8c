"""A bridge: a process that looks like a kernel to PID 1, and drives a Jupyter kernel of another language.

It runs with the template's Python and needs `jupyter_client` there. The Jupyter kernel is its child, in a process group
of its own and in the bridge's session; it is reached over loopback TCP with signed messages, for not every kernel
speaks ipc. When the kernel dies the bridge dies the same way, so PID 1 tells of it as of any kernel.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, NoReturn

from cellbox.guest.kernel import errors, limits, process
from cellbox.guest.kernel.dialects import dialect_for
from cellbox.guest.kernel.display import PLAIN, Displays
from cellbox.guest.kernel.jupyter import Answer, Connection, KernelGoneError
from cellbox.guest.kernel.streams import Outbox
from cellbox.wire.frames import DataChannel

_CHANNEL_FD, _PRIVATE_FD = 3, 200
_READY_SECONDS = 40.0
_STREAMS = {"stdout": DataChannel.STDOUT, "stderr": DataChannel.STDERR}


class Bridge(process.Kernel):
    """Serves one context of one language."""

    def _connect(self, token: str) -> dict[str, Any]:
        self._outbox = Outbox(self._channel, self._pipes, bytes.fromhex(token))
        self._displays = Displays(self._outbox)
        self._interrupts = 0
        return {"type": "ready"}

    def _adopt(self, cwd: str, env: dict[str, str], spec: dict[str, Any]) -> dict[str, Any]:
        """Start the kernel as its kernelspec says, and wait until it answers."""
        answer = super()._adopt(cwd, {**spec["env"], **env})
        if answer["type"] != "ready":
            return answer
        self._message_interrupts = spec["interrupt_mode"] == "message"
        folder = tempfile.mkdtemp(prefix="cellbox-kernel-")
        self._dialect = dialect_for(spec["language"], folder)
        try:
            self._jupyter = Connection(f"{folder}/connection.json")
        except ImportError as error:
            return {"type": "refused", "message": f"the template's Python can't drive Jupyter kernels: {error}"}
        values = {"connection_file": f"{folder}/connection.json", "resource_dir": spec["directory"], "prefix": "/usr"}
        argv = [_fill(part, values) for part in spec["argv"]]
        environment = {**os.environ, "JPY_PARENT_PID": str(os.getpid())}
        try:
            self._child = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, preexec_fn=_prepare_child)
        except (OSError, subprocess.SubprocessError) as error:
            return {"type": "refused", "message": f"the kernel {argv[0]!r} could not be started: {error}"}
        try:
            self._jupyter.wait_until_ready(_READY_SECONDS, lambda: self._child.poll() is None)
        except (KernelGoneError, TimeoutError) as error:
            return {"type": "refused", "message": f"the kernel {argv[0]!r} did not come up: {error}"}
        self._silently(self._dialect.setup)
        return {"type": "ready"}

    def _receive(self) -> dict[str, Any] | None:
        jupyter = getattr(self, "_jupyter", None)
        if jupyter is not None:
            # What background work prints between cells is passed on as it comes.
            while self._channel.fileno() not in jupyter.wait(self._channel.fileno()):
                self._check_child()
                self._pass_on(Answer(""))
        return super()._receive()

    def _run(self, code: str, env: dict[str, str]) -> dict[str, Any]:
        started = time.monotonic()
        self._displays.begin_cell()
        answer = Answer("")
        try:
            text = self._dialect.code(code, env)
        except ValueError as error:
            fields = _failed(
                {"exit": 1, "name": "ValueError", "value": str(error), "traceback": f"ValueError: {error}"}
            )
        else:
            self._interrupts = 0
            for number in (signal.SIGINT, process.HARD_INTERRUPT):
                signal.signal(number, self._note_interrupt)
            try:
                self._silently(self._dialect.before(env))
                answer = self._execute(text)
                self._silently(self._dialect.after(env))
            finally:
                for number in (signal.SIGINT, process.HARD_INTERRUPT):
                    signal.signal(number, signal.SIG_IGN)
            fields = self._outcome(answer)
        return {
            "type": "cell_done",
            "duration_ms": (time.monotonic() - started) * 1000,
            "execution_count": answer.count,
            "dropped_displays": self._displays.dropped,
            "background_threads": 0,
            **fields,
        }

    def _silently(self, code: str) -> None:
        if code:
            self._execute(code, is_silent=True)

    def _execute(self, code: str, *, is_silent: bool = False) -> Answer:
        """Run code and pass its output on until the kernel has answered and is idle."""
        self._check_child()
        answer = Answer(self._jupyter.execute(code, is_silent=is_silent))
        done = 0
        while not answer.is_complete:
            self._jupyter.wait(timeout=answer.patience)
            self._pass_on(answer)
            if done != self._interrupts:
                done = self._interrupts
                self._interrupt()
            if not answer.is_complete:
                self._check_child()
        return answer

    def _pass_on(self, answer: Answer) -> None:
        """Take everything that the kernel has sent. What belongs to no cell that runs is output all the same."""
        for kind, content, is_ours in self._jupyter.messages(answer):
            if kind == "stream":
                text = content.get("text")
                if isinstance(text, str) and text:
                    self._outbox.write(_STREAMS.get(content.get("name", ""), DataChannel.STDOUT), text)
            elif kind in ("display_data", "update_display_data", "execute_result"):
                data, is_main = content.get("data"), kind == "execute_result" and is_ours
                if isinstance(data, dict):
                    if isinstance(data.get(PLAIN), str):
                        data = {**data, PLAIN: errors.plain(data[PLAIN])}
                    self._displays.send(dict(data), source="result" if is_main else "display", is_main=is_main)

    def _outcome(self, answer: Answer) -> dict[str, Any]:
        exit_code = self._dialect.ended()
        if exit_code is not None:
            return {
                "exit": exit_code,
                "error": None,
                "hint": "The code ended its interpreter, which has begun anew: variables are gone.",
            }
        if answer.error is None:
            return {"exit": 0, "error": None, "hint": ""}
        return _failed(self._dialect.error(*answer.error))

    def _interrupt(self) -> None:
        if self._message_interrupts:
            self._jupyter.interrupt()
        else:
            try:
                os.killpg(self._child.pid, signal.SIGINT)
            except (ProcessLookupError, PermissionError):
                return

    def _note_interrupt(self, _number: int, _frame: Any) -> None:
        self._interrupts += 1

    def _check_child(self) -> None:
        """Die as the kernel died, if it has."""
        code = self._child.poll()
        if code is None:
            return
        self._pass_on(Answer(""))
        self._outbox.flush()
        if code < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
            os.kill(os.getpid(), -code)
            time.sleep(0.1)
        os._exit(code if code >= 0 else 128 - code)


def main(archive: str) -> NoReturn:
    """Be a bridge on descriptor 3, with the pipes of its output as descriptors 1 and 2."""
    try:
        while archive in sys.path:
            sys.path.remove(archive)
        for number in (signal.SIGINT, process.HARD_INTERRUPT):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        pipes = tuple(os.dup(fd) for fd in (1, 2))  # descriptors made by Python are closed at exec
        channel = socket.socket(fileno=os.dup(_CHANNEL_FD))
        os.close(_CHANNEL_FD)
        Bridge(None, channel, pipes).serve()
    except BaseException as error:
        os.write(2, f"cellbox bridge: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(70)


def _failed(described: dict[str, Any]) -> dict[str, Any]:
    name, value, trace = (errors.plain(described[key]) for key in ("name", "value", "traceback"))
    error = {
        "name": name[:200],
        "value": limits.cut_middle(value, limits.MAX_ERROR_VALUE),
        "traceback": limits.cut_middle(trace.rstrip("\n") + "\n", limits.MAX_TRACEBACK),
    }
    return {"exit": described["exit"], "error": error, "hint": ""}


def _fill(part: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        part = part.replace(f"{{{name}}}", value)
    return part


def _prepare_child() -> None:
    os.setpgid(0, 0)
    for number in (signal.SIGINT, process.HARD_INTERRUPT):
        signal.signal(number, signal.SIG_DFL)
