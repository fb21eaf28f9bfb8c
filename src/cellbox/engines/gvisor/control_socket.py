"""Client of a sentry's control socket (urpc: one JSON object each way over a unix stream, descriptors by SCM_RIGHTS).

Using it instead of another `runsc` process saves 24-28 ms per restore. It is an internal interface of gVisor: what
differs between releases is kept here, the probe tries it on every new binary, and `commands.py` does the same through
the command line where it is not understood.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

_REPLY_LIMIT = 1 << 20
_PATH_LIMIT = 107
"""Bytes in `sockaddr_un.sun_path`, less the closing zero."""

_LOOPBACK: list[dict[str, Any]] = [
    {
        "Name": "lo",
        "Addresses": [{"Address": "127.0.0.1", "PrefixLen": 8}, {"Address": "::1", "PrefixLen": 128}],
        "Routes": [
            {"Destination": {"IP": "127.0.0.0", "Mask": "/wAAAA=="}, "Gateway": ""},
            {"Destination": {"IP": "::1", "Mask": "/////////////////////w=="}, "Gateway": ""},
        ],
    }
]
"""The only interface a machine ever has. Masks are base64, as Go encodes bytes."""


class ControlFault(Exception):  # noqa: N818 - internal: the engine maps it to its own errors
    """The sentry refused a call, answered nonsense, or went away while it was asked."""


class UnknownMethodFault(ControlFault):
    """This release has no such call."""


class _Reply(msgspec.Struct):
    success: bool = False
    err: str = ""
    result: Any = None


class ControlSocket:
    """One connection; calls go one after the other."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    @classmethod
    async def connect(cls, path: Path) -> ControlSocket:
        """Raises `ControlFault` if nobody listens there."""
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        stream.setblocking(False)
        try:
            if len(os.fsencode(path)) <= _PATH_LIMIT:
                stream.connect(str(path))
            else:
                directory = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
                try:
                    stream.connect(f"/proc/self/fd/{directory}/{path.name}")
                finally:
                    os.close(directory)
        except OSError as error:
            stream.close()
            raise ControlFault(f"the sentry does not listen on its control socket: {error.strerror}") from error
        return cls(stream)

    async def __aenter__(self) -> ControlSocket:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    async def call(self, method: str, argument: Any = None, *, fds: Sequence[int] = (), deadline_s: float) -> Any:
        """Call and wait for the answer. Raises `ControlFault`, also after `deadline_s`."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._send(msgspec.json.encode({"method": method, "arg": argument}), fds)
                return _result(method, await self._receive())
        except TimeoutError as error:
            raise ControlFault(f"{method}: no answer within {deadline_s:g} s") from error
        except OSError as error:
            raise ControlFault(f"{method}: {error.strerror or error}") from error

    async def _send(self, request: bytes, fds: Sequence[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sent = self._stream.sendmsg([request], rights)  # a fresh socket's buffer always takes the first bytes
        if sent < len(request):
            await asyncio.get_running_loop().sock_sendall(self._stream, request[sent:])

    async def _receive(self) -> _Reply:
        loop, received = asyncio.get_running_loop(), bytearray()
        while len(received) <= _REPLY_LIMIT:
            chunk = await loop.sock_recv(self._stream, 1 << 16)
            if not chunk:
                raise ControlFault(f"the sentry closed its control socket after {bytes(received[:200])!r}")
            received += chunk
            try:  # there is no length: an answer is whole when it parses
                return msgspec.json.decode(received, type=_Reply)
            except msgspec.ValidationError as error:
                raise ControlFault(f"the sentry answered nonsense: {bytes(received[:200])!r}") from error
            except (msgspec.DecodeError, RecursionError):
                continue
        raise ControlFault(f"the sentry answered more than {_REPLY_LIMIT} bytes without an end")


def _result(method: str, reply: _Reply) -> Any:
    if reply.success:
        return reply.result
    if "unknown method" in reply.err:
        raise UnknownMethodFault(f"{method}: {reply.err}")
    raise ControlFault(f"{method}: {reply.err[:2000]}")


class SentryCalls:
    """The calls this engine needs, in the dialect of one binary, learned at the first answer."""

    def __init__(self) -> None:
        self._network_method: str | None = None

    async def start(self, path: Path, container: str, *, deadline_s: float) -> None:
        async with await ControlSocket.connect(path) as control:
            await self._network(control, restoring=False, deadline_s=deadline_s)
            await control.call("containerManager.StartRoot", container, deadline_s=deadline_s)

    async def restore(self, path: Path, fds: Sequence[int], *, deadline_s: float) -> None:
        """`fds`: state, page index and pages, read from their present position."""
        async with await ControlSocket.connect(path) as control:
            await self._network(control, restoring=True, deadline_s=deadline_s)
            argument = {"HavePagesFile": True, "HaveDeviceFile": False, "Background": False}
            await control.call("containerManager.Restore", argument, fds=fds, deadline_s=deadline_s)

    async def checkpoint(self, path: Path, fds: Sequence[int], *, leave_running: bool, deadline_s: float) -> None:
        argument = {
            "key": None,
            "metadata": {"compression": "none"},
            "MemoryFileSaveOpts": {"ExcludeCommittedZeroPages": False},
            "have_pages_file": True,
            "Resume": leave_running,
        }
        async with await ControlSocket.connect(path) as control:
            await control.call("containerManager.Checkpoint", argument, fds=fds, deadline_s=deadline_s)

    async def _network(self, control: ControlSocket, *, restoring: bool, deadline_s: float) -> None:
        argument = {"LoopbackLinks": _LOOPBACK, "IsRestore": restoring}
        if self._network_method is None:
            try:
                await control.call("containerManager.SetNetworkArgs", argument, deadline_s=deadline_s)
            except UnknownMethodFault:
                self._network_method = "Network.CreateLinksAndRoutes"  # 20240729
            else:
                self._network_method = "containerManager.SetNetworkArgs"  # 2026
                return
        await control.call(self._network_method, argument, deadline_s=deadline_s)
