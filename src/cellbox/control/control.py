"""What a daemon is made of, put together: store, engine, templates, keys, workspaces, sandboxes and snapshots."""

from __future__ import annotations

import contextlib
from types import TracebackType

from cellbox.control.builds import Builds
from cellbox.control.forks import Forks
from cellbox.control.hibernation import Hibernation
from cellbox.control.images import Images
from cellbox.control.journal import Journals
from cellbox.control.keys import Keys
from cellbox.control.lock import exclusive
from cellbox.control.machines import Machines
from cellbox.control.sandboxes import Sandboxes
from cellbox.control.settings import Settings
from cellbox.control.snapshots import Snapshots
from cellbox.control.tasks import Tasks
from cellbox.control.workspace_files import WorkspaceFiles
from cellbox.control.workspaces import Workspaces
from cellbox.engines.registry import load_engine
from cellbox.store.sqlite import SqliteStore
from cellbox.templates.templates import Templates


class Control:
    """Everything below HTTP. Use as an async context manager: leaving it ends every sandbox and closes the store."""

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
        self.journals = Journals(
            data_dir / "journals",
            limit_bytes=settings.journal_mb * 1024 * 1024,
            keep_seconds=settings.journal_keep_days * 86_400,
        )
        self.workspaces = Workspaces(settings=settings, store=self.store)
        seal = data_dir / "seal"
        saved = Images(data_dir / "snapshots", seal)
        self._resting = Images(data_dir / "hibernated", seal)
        machines = Machines(engine=self.engine, templates=self.templates, tasks=self.tasks)
        self.snapshots = Snapshots(
            settings=settings, engine=self.engine, images=saved, store=self.store, tasks=self.tasks
        )
        self.sandboxes = Sandboxes(
            settings=settings,
            engine=self.engine,
            templates=self.templates,
            store=self.store,
            journals=self.journals,
            workspaces=self.workspaces,
            tasks=self.tasks,
            machines=machines,
            snapshots=self.snapshots,
            hibernation=Hibernation(engine=self.engine, images=self._resting, machines=machines),
        )
        self.workspace_files = WorkspaceFiles(
            workspaces=self.workspaces, sandboxes=self.sandboxes, templates=self.templates, tasks=self.tasks
        )
        self.forks = Forks(sandboxes=self.sandboxes, images=saved)
        self._exits = contextlib.AsyncExitStack()

    async def template_digests_in_use(self) -> set[str]:
        """Contents of templates that sandboxes and snapshots need."""
        return {row.template_digest for row in await self.store.list_sandboxes()} | self.snapshots.digests()

    async def __aenter__(self) -> Control:
        async with contextlib.AsyncExitStack() as exits:
            exits.enter_context(exclusive(self.settings.data_dir))
            exits.push_async_callback(self.tasks.aclose)
            await self.store.start()
            exits.push_async_callback(self.store.aclose)
            exits.push_async_callback(self.engine.aclose)
            await self.keys.start(self.settings.bootstrap_key)
            exits.push_async_callback(self.keys.aclose)
            await self.snapshots.start()
            await self._resting.start({row.id for row in await self.store.list_sandboxes() if row.rest})
            exits.push_async_callback(self.journals.aclose)
            self.tasks.start(self.journals.keep_house(), name="journals")
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
