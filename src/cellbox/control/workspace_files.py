"""Files of workspaces while no sandbox of their owner's runs: a small machine serves them, and never the daemon itself.

What is in a workspace was written by hostile code. A machine's guest looks at it with the workspace as its `/`, as
it would at any file of a sandbox, so no link and no name in it can mean anything on the host. It starts in the time
of a create, and ends when nobody has asked for so long.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import AsyncGenerator

from cellbox import errors
from cellbox.control.files import Files
from cellbox.control.sandbox import LiveSandbox
from cellbox.control.sandboxes import Sandboxes
from cellbox.control.tasks import Tasks
from cellbox.control.workspaces import CARETAKER, Workspaces
from cellbox.protocol.sandboxes import DEFAULT_TEMPLATE, CreateSandbox, SandboxStatus
from cellbox.templates.templates import Templates

_IDLE_SECONDS = 20.0
_LOOK_SECONDS = 5.0
_DISK_MB = 64  # nothing is written there but what a template's own files need
_TEMPLATES = ("base", DEFAULT_TEMPLATE)
"""The leanest first; where an operator has neither, any will do."""


class WorkspaceFiles:
    """Finds or starts the machine of a workspace."""

    def __init__(self, *, workspaces: Workspaces, sandboxes: Sandboxes, templates: Templates, tasks: Tasks) -> None:
        self._workspaces = workspaces
        self._sandboxes = sandboxes
        self._templates = templates
        self._tasks = tasks
        self._caretakers: dict[tuple[str, str], _Caretaker] = {}
        self._gates: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        workspaces.on_delete = self.end

    @contextlib.asynccontextmanager
    async def use(self, owner: str, name: str) -> AsyncGenerator[Files]:
        """Yield a workspace's files; `/` is its top. Raises `WorkspaceNotFoundError`."""
        caretaker = await self._find_or_start(owner, name)
        caretaker.users += 1
        try:
            yield caretaker.sandbox.files
        finally:
            caretaker.users -= 1
            caretaker.idle_since = asyncio.get_running_loop().time()

    async def end(self, owner: str, name: str) -> None:
        """End the machine of a workspace, if there is one."""
        async with self._gates[owner, name]:
            caretaker = self._caretakers.pop((owner, name), None)
            if caretaker is not None:
                await self._end(caretaker)

    async def _find_or_start(self, owner: str, name: str) -> _Caretaker:
        self._workspaces.find(owner, name)
        async with self._gates[owner, name]:
            caretaker = self._caretakers.get((owner, name))
            if caretaker is not None:
                if caretaker.sandbox.status is SandboxStatus.RUNNING:
                    return caretaker
                await self._end(caretaker)
            request = CreateSandbox(template=self._template(), persistent=True, disk_mb=_DISK_MB)
            hold = self._workspaces.hold_one(owner, f"{CARETAKER}{secrets.token_hex(8)}", name)
            caretaker = _Caretaker(await self._sandboxes.create(f"{CARETAKER}{owner}", request, hold=hold))
            self._caretakers[owner, name] = caretaker
        self._tasks.start(self._end_when_idle(owner, name, caretaker), name=f"caretaker {caretaker.sandbox.id}")
        return caretaker

    def _template(self) -> str:
        names = [template.name for template in self._templates.list()]
        return next((name for name in (*_TEMPLATES, *names) if name in names), DEFAULT_TEMPLATE)

    async def _end_when_idle(self, owner: str, name: str, caretaker: _Caretaker) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            async with self._gates[owner, name]:
                if self._caretakers.get((owner, name)) is not caretaker:
                    return
                idle_seconds = asyncio.get_running_loop().time() - caretaker.idle_since
                if caretaker.users or idle_seconds < _IDLE_SECONDS:
                    continue
                del self._caretakers[owner, name]
                await self._end(caretaker)
                return

    async def _end(self, caretaker: _Caretaker) -> None:
        with contextlib.suppress(errors.SandboxNotFoundError):
            await self._sandboxes.kill(caretaker.sandbox.owner, caretaker.sandbox.id)


class _Caretaker:
    def __init__(self, sandbox: LiveSandbox) -> None:
        self.sandbox = sandbox
        self.users = 0
        self.idle_since = asyncio.get_running_loop().time()
