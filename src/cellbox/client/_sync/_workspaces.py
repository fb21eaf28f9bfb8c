"""Workspaces: directories that outlive sandboxes."""

from __future__ import annotations

from cellbox.client._sync._connection import Connection
from cellbox.client._sync._filesystem import Filesystem
from cellbox.client._timeouts import CREATE_SECONDS
from cellbox.protocol import operations
from cellbox.protocol.operations import WORKSPACE_FILES
from cellbox.protocol.workspaces import CreateWorkspace, WorkspaceInfo


class Workspace(Filesystem):
    """One workspace, with its files: they can be read and written whether or not a sandbox has it mounted.

    Paths begin at its top: what is `/workspace/data.csv` in a sandbox is `/data.csv` here. The first call for a while
    takes as long as creating a sandbox.
    """

    _home = "/"

    def __init__(self, connection: Connection, info: WorkspaceInfo) -> None:
        super().__init__(connection, WORKSPACE_FILES, {"name": info.name})
        self._info = info

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def info(self) -> WorkspaceInfo:
        """All that is known of it, as of the last answer about it; `refresh` asks anew."""
        return self._info

    def refresh(self) -> WorkspaceInfo:
        """Ask for its present size and for the sandboxes that have it mounted."""
        self._info = self._connection.call(operations.get_volume, ids=self._ids)
        return self._info

    def delete(self) -> None:
        """Delete it and all that is in it.

        Raises:
            WorkspaceInUseError: Sandboxes have it mounted; kill them first.
        """
        self._connection.call(operations.delete_volume, ids=self._ids)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Workspaces:
    """The caller's workspaces at one daemon."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, name: str, *, size_mb: int | None = None) -> Workspace:
        """Create an empty one. `Sandbox.create(workspace=…)` does so too, when there is none of that name.

        Args:
            name: 1 to 64 letters, digits, dots, dashes and underscores.
            size_mb: How much it may hold; by default what the daemon says, 1024 unless set otherwise.

        Raises:
            WorkspaceExistsError: There is one of this name.
            QuotaExceededError: The owner has as many as it may.
        """
        body = CreateWorkspace(name=name, size_mb=size_mb)
        info = self._connection.call(operations.create_volume, body, timeout_seconds=CREATE_SECONDS)
        return Workspace(self._connection, info)

    def get(self, name: str) -> Workspace:
        """Find one by its name.

        Raises:
            WorkspaceNotFoundError: There is none, or it is someone else's.
        """
        info = self._connection.call(operations.get_volume, ids={"name": name})
        return Workspace(self._connection, info)

    def list(self) -> list[Workspace]:
        """All of them, by name."""
        infos = self._connection.call(operations.list_volumes)
        return [Workspace(self._connection, info) for info in infos]

    def delete(self, name: str) -> None:
        """Delete one and all that is in it.

        Raises:
            WorkspaceInUseError: Sandboxes have it mounted; kill them first.
        """
        self._connection.call(operations.delete_volume, ids={"name": name})

# Generated from _async/_workspaces.py by tools/unasync.py: edit that, and run it again.
