"""One sandbox for each conversation: made at the first call, shared by its agents, found again after a restart."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec

from cellbox.client._sync._client import Client
from cellbox.client._sync._context import CodeContext
from cellbox.client._sync._sandbox import Sandbox
from cellbox.client._compat import Lock, in_thread, notify
from cellbox.errors import ContextNotFoundError, SandboxNotFoundError
from cellbox.integrations.artifacts import ArtifactStore
from cellbox.integrations.facts import Facts
from cellbox.integrations.session_store import SessionRecord, SessionStore, SqliteSessionStore
from cellbox.protocol.sandboxes import DEFAULT_TEMPLATE, SandboxStatus
from cellbox.protocol.templates import TemplateInfo

_MAX_KEY_CHARACTERS = 512
_ALIVE = (SandboxStatus.RUNNING, SandboxStatus.PAUSED, SandboxStatus.HIBERNATED)
_FRESH_SANDBOX = (
    "The sandbox of this conversation had ended, and this ran in a fresh one: variables and files of earlier calls "
    "are gone."
)
_FRESH_WITH_WORKSPACE = (
    "The sandbox of this conversation had ended, and this ran in a fresh one: variables of earlier calls are gone, "
    "files in /workspace are still there."
)
_FRESH_CONTEXT = "The Python process of this conversation had ended: variables and imports of earlier calls are gone."


class BoundSession:
    """A session over a sandbox that someone else made and will kill."""

    def __init__(self, sandbox: Sandbox, artifacts: ArtifactStore | None = None) -> None:
        self.artifacts = artifacts or ArtifactStore()
        self._sandbox = sandbox
        self._context: CodeContext | None = None
        self._lock = Lock()
        self._notices: list[str] = []

    def sandbox(self) -> Sandbox:
        """The sandbox."""
        return self._sandbox

    def context(self) -> CodeContext:
        """Its Python context, made at the first call."""
        with self._lock:
            self._context = self._context or self._sandbox.create_code_context()
            return self._context

    def forget_context(self) -> None:
        """The context is gone: the next call makes another."""
        self._context = None
        self._notices.append(_FRESH_CONTEXT)

    def evict_if_gone(self) -> bool:
        """Nothing can take the place of this sandbox."""
        return False

    def facts(self) -> Facts:
        """What the sandbox is."""
        return Facts.of_sandbox(self._sandbox.info)

    def take_notices(self) -> list[str]:
        """What the model has not been told yet."""
        taken, self._notices = self._notices, []
        return taken


class Session:
    """The sandbox of one conversation, or of one compartment of it. Comes from `Sessions.session`.

    Making one does no I/O. It is safe to share between tasks.
    """

    def __init__(self, sessions: Sessions, key: str, compartment: str, artifacts: ArtifactStore) -> None:
        self.key = key
        self.compartment = compartment
        self.artifacts = artifacts
        """The images of this conversation."""
        self._sessions = sessions
        self._lock = Lock()
        self._sandbox: Sandbox | None = None
        self._context: CodeContext | None = None
        self._record: SessionRecord | None = None
        self._renew_at = 0.0
        self._notices: list[str] = []
        self.used_at = time.monotonic()

    def sandbox(self) -> Sandbox:
        """The conversation's sandbox: the one it has, or a new one.

        Raises:
            CapacityError: There is no room for a new one.
            QuotaExceededError: The owner has as many as it may.
        """
        with self._lock:
            return self._ready()

    def context(self) -> CodeContext:
        """The conversation's Python context, in which variables persist. Errors are those of `sandbox`."""
        with self._lock:
            sandbox = self._ready()
            if self._context is None:
                self._context = self._find_context(sandbox)
            return self._context

    def forget_context(self) -> None:
        """The context is gone: the next call makes another, and the model is told."""
        self._context = None
        self._notices.append(_FRESH_CONTEXT)
        if self._record is not None:
            self._record = msgspec.structs.replace(self._record, context_id="")

    def evict_if_gone(self) -> bool:
        """Whether the sandbox is gone. Then the next call gets another one, and the model is told."""
        with self._lock:
            if self._sandbox is None:
                return True
            try:
                self._sandbox.refresh()
            except SandboxNotFoundError:
                self._drop()
                return True
            if self._sandbox.status in _ALIVE:
                return False
            self._drop()
            return True

    def hibernate(self) -> None:
        """Put the sandbox on disk, if there is one: it uses no memory. The next call wakes it with its variables."""
        with self._lock:
            sandbox = self._sandbox or self._attach()
            if sandbox is not None:
                sandbox.hibernate()
                self._sandbox = sandbox

    def end(self) -> None:
        """Kill the sandbox and forget it. The next call would make another."""
        self._sessions.end(self.key, compartment=self.compartment)

    def facts(self) -> Facts:
        """What the sandbox is, or will be."""
        return self._sessions.facts()

    def take_notices(self) -> list[str]:
        """What the model has not been told yet."""
        taken, self._notices = self._notices, []
        return taken

    def _ready(self) -> Sandbox:
        self.used_at = time.monotonic()
        sandbox = self._sandbox
        while sandbox is None:
            sandbox = self._attach() or self._create()
        self._sandbox = sandbox
        self._keep_alive(sandbox)
        return sandbox

    def _attach(self) -> Sandbox | None:
        """The sandbox that the store names, if it still lives."""
        gone = self._record.sandbox_id if self._record is not None else None
        record = in_thread(partial(self._sessions.store.get, self.key, self.compartment))
        if record is None:
            self._record = None
            return None
        if record.sandbox_id != gone:
            try:
                sandbox = self._sessions.client.sandboxes.get(record.sandbox_id)
            except SandboxNotFoundError:
                pass
            else:
                if sandbox.status in _ALIVE:
                    self._record = record
                    return sandbox
        self._notices.append(_FRESH_WITH_WORKSPACE if self._sessions.workspace else _FRESH_SANDBOX)
        self._record = record
        return None

    def _create(self) -> Sandbox | None:
        """A new sandbox, unless another process was quicker to give this conversation one."""
        stale = self._record
        sandbox = self._sessions.create_sandbox(self.key, self.compartment)
        mine = SessionRecord(key=self.key, compartment=self.compartment, sandbox_id=sandbox.id, used_at=time.time())
        instead_of = stale.sandbox_id if stale is not None else None
        stands = in_thread(partial(self._sessions.store.claim, mine, instead_of=instead_of))
        self._record = stands if stands.sandbox_id == sandbox.id else None
        if self._record is None:
            sandbox.kill()
            return None
        self._renew_at = time.monotonic() + self._sessions.ttl_seconds / 4
        return sandbox

    def _find_context(self, sandbox: Sandbox) -> CodeContext:
        record = self._record
        if record is not None and record.context_id:
            try:
                return sandbox.get_code_context(record.context_id)
            except ContextNotFoundError:
                self._notices.append(_FRESH_CONTEXT)
        context = sandbox.create_code_context()
        if record is not None:
            self._record = msgspec.structs.replace(record, context_id=context.id, used_at=time.time())
            in_thread(partial(self._sessions.store.update, self._record))
        return context

    def _keep_alive(self, sandbox: Sandbox) -> None:
        """Let the TTL count from the last use, without a request for each use."""
        if time.monotonic() < self._renew_at:
            return
        sandbox.set_ttl(self._sessions.ttl_seconds)
        self._renew_at = time.monotonic() + self._sessions.ttl_seconds / 4
        if self._record is not None:
            self._record = msgspec.structs.replace(self._record, used_at=time.time())
            in_thread(partial(self._sessions.store.update, self._record))

    def _drop(self) -> None:
        self._sandbox = self._context = None
        self._renew_at = 0.0


class Sessions:
    """The conversations of one application, each with a sandbox of its own that no other can reach.

    A sandbox is made at the first call that needs it, lives `ttl_seconds` beyond the last use, and is replaced when it
    is gone. With a file as `store` a restarted application finds the sandboxes of its conversations again; without
    one they are killed when this is closed.

    Args:
        store: Path of an SQLite file, or a `SessionStore` of your own.
        template: What sandboxes are made from.
        ttl_seconds: How long a sandbox outlives its last use.
        network: `none` has the loopback device only.
        workspace: Name of a workspace that every sandbox has at `/workspace`: its files outlive them, and all
            conversations share them.
        prepare: Called with each new sandbox before anything else uses it: to upload files.
        artifacts: Makes the artifact store of a conversation; it is called with the key and the compartment.
        api_url: The daemon; by default as everywhere, from the environment.
    """

    def __init__(
        self,
        store: SessionStore | str | Path | None = None,
        *,
        template: str = DEFAULT_TEMPLATE,
        ttl_seconds: float = 1800,
        network: Literal["none"] = "none",
        env: Mapping[str, str] | None = None,
        cpu: float | None = None,
        memory_mb: int | None = None,
        disk_mb: int | None = None,
        workspace: str | None = None,
        prepare: Callable[[Sandbox], object] | None = None,
        artifacts: Callable[[str, str], ArtifactStore] | None = None,
        api_url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        self.template = template
        self.ttl_seconds = ttl_seconds
        self.client = Client(api_url, api_key)
        self._is_kept = store is not None
        self._own_store = (
            SqliteSessionStore(store if store is not None else ":memory:")
            if store is None or isinstance(store, (str, Path))
            else None
        )
        self.store: SessionStore = self._own_store if self._own_store is not None else store  # pyright: ignore[reportAttributeAccessIssue]
        self._network: Literal["none"] = network
        self._env = dict(env or {})
        self._cpu, self._memory_mb, self._disk_mb = cpu, memory_mb, disk_mb
        self.workspace = workspace
        self._prepare = prepare
        self._artifacts = artifacts
        self._address = (api_url, api_key)
        self._template_info: TemplateInfo | None = None
        self._open: OrderedDict[tuple[str, str], Session] = OrderedDict()

    def session(self, key: str, *, compartment: str = "") -> Session:
        """The session of a conversation. Does no I/O; the same key gives the same session.

        Args:
            key: Your own id of the conversation. Whoever can choose it can reach its sandbox: take it from what you
                authenticated.
            compartment: Gives an agent of the conversation a sandbox apart from the others': for one that reads what
                strangers wrote.

        Raises:
            ValueError: The key is empty or longer than 512 characters.
        """
        if not key or len(key) > _MAX_KEY_CHARACTERS:
            raise ValueError(f"A session's key has 1 to {_MAX_KEY_CHARACTERS} characters, not {len(key)}")
        self._forget_idle()
        session = self._open.get((key, compartment))
        if session is None:
            store = self._artifacts(key, compartment) if self._artifacts is not None else ArtifactStore()
            session = self._open[key, compartment] = Session(self, key, compartment, store)
        self._open.move_to_end((key, compartment))
        session.used_at = time.monotonic()
        return session

    def end(self, key: str, *, compartment: str | None = None) -> None:
        """Kill the sandboxes of a conversation, of all its compartments unless one is named. None at all is fine."""
        for name in [name for name in self._open if name[0] == key and compartment in (None, name[1])]:
            self._open.pop(name, None)
        records = in_thread(partial(self.store.remove, key, compartment))
        for record in records:
            self._kill(record)

    def end_idle(self, seconds: float) -> int:
        """End all conversations that were not used for so long, and return how many sandboxes that were."""
        records = in_thread(partial(self.store.prune, time.time() - seconds))
        for record in records:
            self._open.pop((record.key, record.compartment), None)
            self._kill(record)
        return len(records)

    def facts(self) -> Facts:
        """What the sandboxes are. Asks the daemon once, and blocks for the few milliseconds that takes.

        Raises:
            TemplateNotFoundError: There is no such template.
            DaemonUnavailableError: No daemon answers.
        """
        if self._template_info is None:
            api_url, api_key = self._address
            self._template_info = Facts.look_up(self.template, api_url=api_url, api_key=api_key)
        return Facts.of_template(
            self._template_info,
            network=self._network,
            memory_mb=self._memory_mb,
            disk_mb=self._disk_mb,
            cpu=self._cpu,
        )

    def create_sandbox(self, key: str, compartment: str) -> Sandbox:
        """Make and prepare a sandbox; what sessions call."""
        labels = {"session": key, "compartment": compartment}
        sandbox = self.client.sandboxes.create(
            self.template,
            ttl_seconds=self.ttl_seconds,
            metadata={name: value for name, value in labels.items() if value},
            env=self._env,
            cpu=self._cpu,
            memory_mb=self._memory_mb,
            disk_mb=self._disk_mb,
            workspace=self.workspace,
            network=self._network,
        )
        try:
            notify(self._prepare, sandbox)
        except BaseException:
            sandbox.kill()
            raise
        return sandbox

    def close(self) -> None:
        """Close the connections. Sandboxes live on if their conversations can be found again, else they are killed."""
        if not self._is_kept:
            self.end_idle(0)
        self.client.close()
        if self._own_store is not None:
            self._own_store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _kill(self, record: SessionRecord) -> None:
        try:
            sandbox = self.client.sandboxes.get(record.sandbox_id)
        except SandboxNotFoundError:
            return
        sandbox.kill()

    def _forget_idle(self) -> None:
        """Drop handles whose sandboxes have ended by themselves, so that a long-lived application does not grow."""
        oldest = next(iter(self._open.values()), None)
        while oldest is not None and time.monotonic() - oldest.used_at > self.ttl_seconds:
            del self._open[oldest.key, oldest.compartment]
            oldest = next(iter(self._open.values()), None)


AnySession = BoundSession | Session
"""What tools work on."""

# Generated from _async/_sessions.py by tools/unasync.py: edit that, and run it again.
