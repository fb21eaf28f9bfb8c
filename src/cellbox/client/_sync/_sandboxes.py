"""The collection that sandboxes come from."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from cellbox.client._sync._connection import Connection
from cellbox.client._sync._sandbox import Sandbox
from cellbox.client._codec import Query
from cellbox.client._compat import sleep
from cellbox.client._errors import capacity_delays
from cellbox.client._journal import Journal
from cellbox.client._timeouts import CREATE_SECONDS
from cellbox.errors import APIError
from cellbox.protocol import journal as protocol
from cellbox.protocol import operations
from cellbox.protocol.journal import MAX_PAGE_ENTRIES
from cellbox.protocol.sandboxes import DEFAULT_TEMPLATE, CreateSandbox, OnTimeout, VolumeMount


class Sandboxes:
    """The caller's sandboxes at one daemon."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(
        self,
        template: str = DEFAULT_TEMPLATE,
        *,
        from_snapshot: str | None = None,
        ttl_seconds: float | None = None,
        on_timeout: OnTimeout = "kill",
        persistent: bool = False,
        metadata: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        cpu: float | None = None,
        memory_mb: int | None = None,
        disk_mb: int | None = None,
        workspace: str | None = None,
        volumes: Iterable[VolumeMount | Mapping[str, Any]] = (),
        network: Literal["none"] = "none",
        retry_seconds: float = 60,
    ) -> Sandbox:
        """Create a sandbox and wait until it can run code. Arguments and errors are those of `Sandbox.create`."""
        body = CreateSandbox(
            template=template,
            from_snapshot=from_snapshot,
            ttl_seconds=ttl_seconds,
            on_timeout=on_timeout,
            persistent=persistent,
            metadata=dict(metadata or {}),
            env=dict(env or {}),
            cpu=cpu,
            memory_mb=memory_mb,
            disk_mb=disk_mb,
            workspace=workspace or "",
            volumes=[msgspec.convert(volume, VolumeMount, from_attributes=True) for volume in volumes],
            network=network,
        )
        deadline = time.monotonic() + retry_seconds
        attempt = 0
        while True:
            try:
                info = self._connection.call(operations.create_sandbox, body, timeout_seconds=CREATE_SECONDS)
                return Sandbox(self._connection, info)
            except APIError as error:
                delay = capacity_delays(error, attempt, deadline - time.monotonic())
                if delay is None:
                    raise
            sleep(delay)
            attempt += 1

    def get(self, sandbox_id: str) -> Sandbox:
        """Find a sandbox by its id.

        Raises:
            SandboxNotFoundError: There is none, or it is someone else's.
        """
        info = self._connection.call(operations.get_sandbox, ids={"sandbox_id": sandbox_id})
        return Sandbox(self._connection, info)

    def journal(self, sandbox_id: str) -> Journal:
        """What ran in a sandbox and what came of it; journals outlive their sandboxes by some days.

        Raises:
            SandboxNotFoundError: There is no journal of it (any more), or it is someone else's.
        """
        pages: list[protocol.Journal] = []
        after: int | None = 0
        while after is not None:
            query: Query = [("after", after), ("limit", MAX_PAGE_ENTRIES)]
            page = self._connection.call(operations.read_journal, query=query, ids={"sandbox_id": sandbox_id})
            pages.append(page)
            after = page.next_after
        return Journal(pages)

    def list(self) -> list[Sandbox]:
        """All of them, newest first."""
        infos = self._connection.call(operations.list_sandboxes)
        return [Sandbox(self._connection, info) for info in infos]

# Generated from _async/_sandboxes.py by tools/unasync.py: edit that, and run it again.
