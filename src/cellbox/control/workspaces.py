"""Workspaces: directories with a name and an owner that outlive the sandboxes that have them mounted."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

import structlog

from cellbox import errors
from cellbox.control.settings import Settings
from cellbox.control.workspace_storage import WorkspaceStorage
from cellbox.engines.base import Attachment
from cellbox.protocol.sandboxes import CreateSandbox
from cellbox.protocol.workspaces import WORKSPACE_NAME, CreateWorkspace, WorkspaceInfo
from cellbox.store.base import Store, WorkspaceRow

WORKSPACE_DIRECTORY = "/workspace"
MAX_VOLUMES = 14
CARETAKER = "caretaker\0"
"""Begins the names of holders that are no sandboxes of a user's."""
_RESERVED = ("/proc", "/sys", "/dev")

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A workspace at a path of one sandbox."""

    row: WorkspaceRow
    path: str
    read_only: bool


class Hold:
    """What one sandbox has mounted. The workspaces can't be deleted until it is released."""

    def __init__(self, workspaces: Workspaces, holder: str, mounts: Sequence[Mount], files_root: str = "") -> None:
        self._workspaces = workspaces
        self._holder = holder
        self._mounts = mounts
        self.attachments: tuple[Attachment, ...] = ()
        """For the machine's specification."""
        self.files_root = files_root
        """For the guest: the directory that file operations are confined to; empty in a sandbox."""
        self._is_released = False

    @property
    def attached(self) -> dict[str, str]:
        """For the guest: directory in the sandbox → name of the attachment."""
        return {mount.path: mount.row.id for mount in self._mounts}

    @property
    def read_only(self) -> list[str]:
        """For the guest: those of the directories that can't be written."""
        return [mount.path for mount in self._mounts if mount.read_only]

    async def attach(self) -> None:
        """Make the workspaces' content reachable. Raises what keeps it from that; release the hold then too."""
        self.attachments = tuple([await self._workspaces.open(self._holder, mount) for mount in self._mounts])

    async def release(self) -> None:
        """Let the workspaces go. The machine must be gone. Idempotent."""
        if self._is_released:
            return
        self._is_released = True
        for mount in self._mounts:
            await self._workspaces.close(self._holder, mount.row.id)


class Workspaces:
    """All workspaces of this daemon. A name means nothing without its owner."""

    def __init__(self, *, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._storage = WorkspaceStorage(settings.data_dir / "workspaces")
        self._rows: dict[tuple[str, str], WorkspaceRow] = {}
        self._holders: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """Workspace id → ids of the sandboxes that have it mounted."""
        self._opened: dict[str, Path] = {}
        self._gates: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.on_delete: Callable[[str, str], Awaitable[None]] | None = None
        """Told of owner and name before the content goes: ends holders that are no sandboxes of a user's."""

    async def start(self) -> None:
        """Read what there is, and remove what a crash left of workspaces that were being made or deleted."""
        self._rows = {(row.owner, row.name): row for row in await self._store.list_workspaces()}
        for workspace_id in self._storage.ids() - {row.id for row in self._rows.values()}:
            _log.info("removing what is left of a workspace", workspace_id=workspace_id)
            await self._storage.remove(workspace_id)

    async def aclose(self) -> None:
        """Write everything to the disk. No sandbox may be left."""
        for workspace_id in list(self._opened):
            await self._storage.close(workspace_id)

    async def list(self, owner: str) -> list[WorkspaceInfo]:
        """Return the owner's workspaces, by name."""
        return [await self._info(row) for row in sorted(self._of(owner), key=lambda row: row.name)]

    async def get(self, owner: str, name: str) -> WorkspaceInfo:
        return await self._info(self.find(owner, name))

    async def create(self, owner: str, request: CreateWorkspace) -> WorkspaceInfo:
        async with self._gates[owner]:
            if (owner, request.name) in self._rows:
                raise errors.WorkspaceExistsError(f"volume already exists: {request.name!r}")
            row = await self._make(owner, request)
        return await self._info(row)

    async def delete(self, owner: str, name: str) -> None:
        """Delete a workspace and all that is in it. Raises `WorkspaceInUseError` while a sandbox has it mounted."""
        row = self.find(owner, name)
        async with self._gates[row.id]:
            self.find(owner, name)
            if users := self._users(row.id):
                raise errors.WorkspaceInUseError(
                    f"workspace {name!r} is in use by {len(users)} sandboxes; kill them first",
                    details={"sandboxes": users},
                )
            del self._rows[owner, name]
        if self.on_delete is not None:
            await self.on_delete(owner, name)
        await self._store.delete_workspace(row.id)
        await self._storage.remove(row.id)
        self._gates.pop(row.id, None)

    async def hold(self, owner: str, sandbox_id: str, request: CreateSandbox) -> Hold:
        """Keep what a sandbox is to have mounted from being deleted, creating its `workspace` at the first use.

        Raises `InvalidRequestError` for mounts that make no sense; nothing is held then.
        """
        mounts: list[Mount] = []
        if request.workspace:
            row = await self._find_or_make(owner, request.workspace)
            mounts.append(Mount(row=row, path=WORKSPACE_DIRECTORY, read_only=False))
        if len(request.volumes) > MAX_VOLUMES:
            raise errors.InvalidRequestError(f"at most {MAX_VOLUMES} volumes, got {len(request.volumes)}")
        for volume in request.volumes:
            found = self._rows.get((owner, volume.name))
            if found is None:
                raise errors.InvalidRequestError(f"volume {volume.name[:64]!r}: not found; create it first")
            path = _checked_path(volume.path or f"/volumes/{volume.name}")
            mounts.append(Mount(row=found, path=path, read_only=volume.read_only))
        return self._keep(sandbox_id, mounts)

    def hold_one(self, owner: str, holder: str, name: str) -> Hold:
        """Hold one workspace that exists, for a machine that serves its files and nothing else."""
        mounts = [Mount(row=self.find(owner, name), path=WORKSPACE_DIRECTORY, read_only=False)]
        return self._keep(holder, mounts, files_root=WORKSPACE_DIRECTORY)

    def _keep(self, holder: str, mounts: Sequence[Mount], files_root: str = "") -> Hold:
        """Count `holder` as a user of workspaces from now on."""
        paths = [mount.path for mount in mounts]
        ids = [mount.row.id for mount in mounts]
        if len(set(paths)) < len(paths) or len(set(ids)) < len(ids):
            raise errors.InvalidRequestError("each volume can be mounted once, and each path holds one")
        for workspace_id in ids:
            self._holders[workspace_id][holder] = None
        return Hold(self, holder, mounts, files_root)

    async def open(self, holder: str, mount: Mount) -> Attachment:
        """Make a workspace's content reachable for a holder of it."""
        row = mount.row
        async with self._gates[row.id]:
            if self._rows.get((row.owner, row.name)) != row or holder not in self._holders[row.id]:
                raise errors.WorkspaceNotFoundError(f"no workspace {row.name!r}: it was deleted meanwhile")
            if not self._storage.is_enforced(row.id):
                used = await self._storage.size_bytes(row.id)
                if used > row.size_mb << 20 and not mount.read_only and not holder.startswith(CARETAKER):
                    raise errors.StorageFullError(
                        f"workspace {row.name!r} holds {used >> 20} of its {row.size_mb} MiB: remove something first"
                    )
            if row.id not in self._opened:
                self._opened[row.id] = await self._storage.open(row.id)
            return Attachment(name=row.id, source=self._opened[row.id], read_only=mount.read_only)

    async def close(self, holder: str, workspace_id: str) -> None:
        """End a holder's use; the last one's puts the content away."""
        async with self._gates[workspace_id]:
            holders = self._holders.get(workspace_id, {})
            holders.pop(holder, None)
            if holders:
                return
            self._holders.pop(workspace_id, None)
            if self._opened.pop(workspace_id, None) is not None:
                await self._storage.close(workspace_id)

    def limitations(self, hold: Hold) -> list[str]:
        """What can't be enforced of the mounts of a sandbox, in words."""
        return [
            f"the size of the workspace at {path} is looked at when it is mounted, and not enforced"
            for path, workspace_id in hold.attached.items()
            if not self._storage.is_enforced(workspace_id)
        ]

    async def _find_or_make(self, owner: str, name: str) -> WorkspaceRow:
        if not re.fullmatch(WORKSPACE_NAME, name):
            raise errors.InvalidRequestError(
                f"{name[:64]!r} can't name a workspace: 1 to 64 letters, digits, dots, dashes and underscores"
            )
        async with self._gates[owner]:
            row = self._rows.get((owner, name))
            return row if row is not None else await self._make(owner, CreateWorkspace(name=name))

    async def _make(self, owner: str, request: CreateWorkspace) -> WorkspaceRow:
        settings = self._settings
        size_mb = request.size_mb or settings.workspace_mb
        if size_mb > settings.max_workspace_mb:
            raise errors.InvalidRequestError(f"size_mb can be {settings.max_workspace_mb} at most, not {size_mb}")
        if len(self._of(owner)) >= settings.max_workspaces_per_owner:
            raise errors.QuotaExceededError(
                f"you have {settings.max_workspaces_per_owner} workspaces, which is the limit; delete one first",
                details={"quota": "max_workspaces_per_owner", "max": settings.max_workspaces_per_owner},
            )
        row = WorkspaceRow(id=uuid.uuid4().hex, owner=owner, name=request.name, size_mb=size_mb, created_at=time.time())
        # The content first: a row promises that there is one. What a crash leaves without a row is swept at the start.
        await self._storage.make(row.id, size_mb)
        await self._store.insert_workspace(row)
        self._rows[owner, request.name] = row
        return row

    def _of(self, owner: str) -> list[WorkspaceRow]:
        return [row for row in self._rows.values() if row.owner == owner]

    def find(self, owner: str, name: str) -> WorkspaceRow:
        """Raises `WorkspaceNotFoundError`; someone else's is as unknown as one that never was."""
        row = self._rows.get((owner, name))
        if row is None:
            raise errors.WorkspaceNotFoundError(f"no workspace {name[:64]!r}")
        return row

    def _users(self, workspace_id: str) -> list[str]:
        return [holder for holder in self._holders.get(workspace_id, {}) if not holder.startswith(CARETAKER)]

    async def _info(self, row: WorkspaceRow) -> WorkspaceInfo:
        return WorkspaceInfo(
            name=row.name,
            size_mb=row.size_mb,
            size_bytes=await self._storage.size_bytes(row.id),
            created_at=datetime.fromtimestamp(row.created_at, UTC),
            sandboxes=self._users(row.id),
            is_enforced=self._storage.is_enforced(row.id),
        )


def _checked_path(path: str) -> str:
    parts = PurePosixPath(path)
    is_reserved = any(parts.is_relative_to(place) for place in _RESERVED)
    if not path.startswith("/") or ".." in parts.parts or len(path) > 512 or "\0" in path or len(parts.parts) < 2:
        raise errors.InvalidRequestError(f"{path[:200]!r} can't be the path of a volume: absolute, without `..`")
    if is_reserved:
        raise errors.InvalidRequestError(f"a volume can't be mounted at {path}: that is the system's")
    return str(parts)
