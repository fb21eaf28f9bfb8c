"""The zygote: imports what kernels need, is baked into the template's checkpoint, and forks kernels on request.

It has one thread and never runs anything of the user's. PID 1 asks over a packet socket with three descriptors (the
kernel's channel and its two pipes); the zygote answers with the pid, and reports every end.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import platform
import select
import signal
import socket
import sys
from typing import Any, NoReturn

_PRELOADED = (
    "numpy",
    "pandas",
    "matplotlib.pyplot",
    "ssl",
    "uuid",
    "asyncio",
    "multiprocessing.pool",
    "concurrent.futures",
)
"""Imported before the checkpoint if they are there. Anything else is imported by the cell that wants it."""


def main(channel_fd: int, archive: str) -> NoReturn:
    """Be the zygote on the given socket. `archive` is dropped from `sys.path` before the user's code can see it."""
    control = socket.socket(fileno=channel_fd)
    os.environ.setdefault("MPLBACKEND", "agg")
    os.environ.setdefault("MPLCONFIGDIR", "/tmp/.matplotlib")
    try:
        shell = _prepare()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        _tell(control, {"problem": f"the template's Python {platform.python_version()} can't run cells: {why}"[:2000]})
        os._exit(1)
    while archive in sys.path:
        sys.path.remove(archive)
    if sys.path[:1] != [""]:
        sys.path.insert(0, "")
    os.environ.pop("MPLCONFIGDIR", None)
    gc.collect()
    gc.freeze()
    _tell(control, {"ready": platform.python_version()})
    _serve(control, shell)


def _prepare() -> Any:
    for name in _PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    from cellbox.guest.kernel import process
    from cellbox.guest.kernel.shell import Shell

    assert process
    # Chart recognition and fonts import parts of matplotlib late; have them in the checkpoint.
    if "matplotlib" in sys.modules:
        import matplotlib.backends.backend_agg
        import matplotlib.font_manager

        assert matplotlib.backends.backend_agg
        assert matplotlib.font_manager.fontManager
    return Shell.instance()


def _serve(control: socket.socket, shell: Any) -> NoReturn:
    wake_reader, wake_writer = os.pipe()
    for end in (wake_reader, wake_writer):
        os.set_blocking(end, False)
        os.set_inheritable(end, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake_reader, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if wake_reader in ready:
            os.read(wake_reader, 4096)
        _report_ends(control)
        if control.fileno() in ready:
            message, fds, _, _ = socket.recv_fds(control, 4096, 3)
            if not message:
                os._exit(0)
            if len(fds) == 3:
                _fork(control, shell, fds, (wake_reader, wake_writer))


def _fork(control: socket.socket, shell: Any, fds: list[int], wake: tuple[int, int]) -> None:
    pid = os.fork()
    if pid == 0:
        from cellbox.guest.kernel.process import become_kernel

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for end in wake:
            os.close(end)
        become_kernel(shell, socket.socket(fileno=fds[0]), (fds[1], fds[2]))
    for fd in fds:
        os.close(fd)
    _tell(control, {"forked": pid})


def _report_ends(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(control, {"ended": pid, "status": status})


def _tell(control: socket.socket, message: dict[str, Any]) -> None:
    try:
        control.send(json.dumps(message).encode())
    except OSError:
        os._exit(0)
