"""What a daemon is made of, put together: store, engine, templates, keys, workspaces and sandboxes."""

from __future__ import annotations

import contextlib
from types import TracebackType

from cellbox.control.builds import Builds
from cellbox.control.keys import Keys
from cellbox.control.lock import exclusive
from cellbox.control.sandboxes import Sandboxes
from cellbox.control.settings import Settings
from cellbox.control.tasks import Tasks
from cellbox.control.workspace_files import WorkspaceFiles
from cellbox.control.workspaces import Workspaces
from cellbox.engines.registry import load_engine
from cellbox.store.sqlite import SqliteStore
from cellbox.templates.templates import Templates


class Control:
    """Everything below HTTP. Use as an async context manager: leaving it kills every sandbox and closes the store."""

    def __init__(self, settings: Settings) -> None:
        data_dir = settings.data_dir
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.settings = settings
        self.tasks = Tasks()
        self.store = SqliteStore(data_dir / "cellbox.sqlite")
        self.engine = load_engine(settings.engine, data_dir / "engine")
        self.templates = Templates(settings.templates_dir or data_dir, self.engine)
        self.keys = Keys(self.store, data_dir)
        self.builds = Builds(self.templates, data_dir, self.tasks)
        self.workspaces = Workspaces(settings=settings, store=self.store)
        self.sandboxes = Sandboxes(
            settings=settings,
            engine=self.engine,
            templates=self.templates,
            store=self.store,
            workspaces=self.workspaces,
            tasks=self.tasks,
        )
        self.workspace_files = WorkspaceFiles(
            workspaces=self.workspaces, sandboxes=self.sandboxes, templates=self.templates, tasks=self.tasks
        )
        self._exits = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Control:
        async with contextlib.AsyncExitStack() as exits:
            exits.enter_context(exclusive(self.settings.data_dir))
            exits.push_async_callback(self.tasks.aclose)
            await self.store.start()
            exits.push_async_callback(self.store.aclose)
            exits.push_async_callback(self.engine.aclose)
            await self.keys.start(self.settings.bootstrap_key)
            exits.push_async_callback(self.keys.aclose)
            await self.sandboxes.start()
            await self.workspaces.start()
            exits.push_async_callback(self.workspaces.aclose)
            exits.push_async_callback(self.sandboxes.aclose)
            self._exits = exits.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.aclose()
