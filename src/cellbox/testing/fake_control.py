"""A `Control` without an engine: sandboxes that only pretend, for tests of what lies above them. It runs nothing.

Keys, store and logs are the real ones. A fake command understands `echo TEXT`, `sleep SECONDS`, `false` and `fail`;
a fake cell is `print(TEXT)`, `sleep(SECONDS)`, `raise` or an expression whose "value" is its own text.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from pathlib import PurePosixPath

from cellbox import errors
from cellbox.control.journal import Journals
from cellbox.control.keys import Keys
from cellbox.control.logs import SandboxLog
from cellbox.control.settings import Settings
from cellbox.engines.base import Probe
from cellbox.protocol import commands, contexts, files, pool, sandboxes
from cellbox.store.sqlite import SqliteStore

CHUNK_BYTES = 64 * 1024


class FakeControl:
    """Stands in for `cellbox.control.control.Control`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = SqliteStore(settings.data_dir / "cellbox.sqlite")
        self.keys = Keys(self.store, settings.data_dir)
        self.journals = Journals(settings.data_dir / "journals", limit_bytes=1024 * 1024, keep_seconds=60)
        self.sandboxes = FakeSandboxes()
        self.snapshots = FakeSnapshots()
        self.engine = FakeEngine()

    async def template_digests_in_use(self) -> set[str]:
        return {row.template_digest for row in await self.store.list_sandboxes()}

    async def __aenter__(self) -> FakeControl:
        await self.store.start()
        await self.keys.start(self.settings.bootstrap_key)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.keys.aclose()
        await self.store.aclose()


class FakeEngine:
    async def probe(self) -> Probe:
        return Probe(engine="fake", version="0", usable=True)


class FakeSnapshots:
    def count(self) -> tuple[int, int]:
        return 0, 0


class FakePool:
    """Takes sizes and never fills."""

    ready = 0

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._sizes: dict[str, pool.PoolSize] = {}

    def resize(self, sizes: dict[str, pool.PoolSize]) -> None:
        self._sizes = dict(sizes)

    async def status(self) -> pool.PoolStatus:
        return pool.PoolStatus(
            entries=[], sizes=self._sizes, ready=0, memory_bytes=0, hits=0, misses=0, unfit=0, given_back=0
        )


class FakeSandboxes:
    """The registry."""

    def __init__(self) -> None:
        self.boots: Counter[str] = Counter()
        self.pool = FakePool()
        self.refusal: Exception | None = None
        """Raised by the next `create`, once."""
        self._live: dict[str, FakeSandbox] = {}
        self._killed: dict[str, str] = {}

    async def create(self, owner: str, request: sandboxes.CreateSandbox) -> FakeSandbox:
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal
        sandbox = FakeSandbox(owner, request)
        self._live[sandbox.id] = sandbox
        self.boots["fake"] += 1
        return sandbox

    def list(self, owner: str) -> list[FakeSandbox]:
        return [sandbox for sandbox in reversed(self._live.values()) if sandbox.owner == owner]

    def find(self, owner: str, sandbox_id: str) -> FakeSandbox:
        sandbox = self._live.get(sandbox_id)
        if sandbox is None or sandbox.owner != owner:
            raise errors.SandboxNotFoundError("no such sandbox")
        return sandbox

    async def kill(self, owner: str, sandbox_id: str) -> None:
        if self._killed.get(sandbox_id) == owner:
            return
        self.find(owner, sandbox_id).log.close()
        del self._live[sandbox_id]
        self._killed[sandbox_id] = owner

    def count(self) -> int:
        return len(self._live)

    def count_hibernated(self) -> int:
        return 0


class FakeSandbox:
    def __init__(self, owner: str, request: sandboxes.CreateSandbox) -> None:
        self.id = str(uuid.uuid4())
        self.owner = owner
        self.log = SandboxLog()
        self.commands = FakeCommands()
        self.contexts = FakeContexts(self.id)
        self.files = FakeFiles()
        self._request = request
        self._metadata = request.metadata
        self._ttl_seconds = request.ttl_seconds or 3600.0
        self._persistent = request.persistent
        self._created_at = datetime.now(UTC)

    def info(self) -> sandboxes.SandboxInfo:
        return sandboxes.SandboxInfo(
            id=self.id,
            template=self._request.template,
            status=sandboxes.SandboxStatus.RUNNING,
            cpu=1,
            memory_mb=512,
            disk_mb=512,
            created_at=self._created_at,
            metadata=self._metadata,
            persistent=self._persistent,
            ttl_seconds=self._ttl_seconds,
            boot_ms=1,
            boot_mode="fake",
        )

    def lifecycle(self) -> sandboxes.Lifecycle:
        return sandboxes.Lifecycle(ttl_seconds=self._ttl_seconds, persistent=self._persistent, idle_seconds=0)

    async def update_lifecycle(self, body: sandboxes.UpdateLifecycle) -> sandboxes.Lifecycle:
        if isinstance(body.ttl_seconds, int | float):
            self._ttl_seconds = body.ttl_seconds
        if isinstance(body.persistent, bool):
            self._persistent = body.persistent
        return self.lifecycle()

    async def update_metadata(self, body: sandboxes.UpdateMetadata) -> sandboxes.SandboxInfo:
        self._metadata = body.metadata
        return self.info()

    async def usage(self) -> sandboxes.SandboxUsage:
        return sandboxes.SandboxUsage(
            uptime_seconds=1,
            host_cpu_seconds=0,
            host_cpu_percent=0,
            host_rss_bytes=1,
            host_peak_bytes=1,
            processes=1,
            pid=1,
        )


class FakeCommands:
    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        """Set when a command was stopped because nobody waited for it any more."""

    async def run(self, body: commands.RunCommand) -> commands.CommandResult:
        verb, _, rest = body.cmd.partition(" ")
        if verb == "fail":
            raise RuntimeError("/secret/path: connect: connection refused")
        if verb == "sleep" and not await self._sleep(float(rest), body.timeout_seconds):
            return commands.CommandResult(stdout="so far\n", stderr="", exit_code=137, reason="timeout")
        stdout = f"{rest}\n" if verb == "echo" else ""
        return commands.CommandResult(stdout=stdout, stderr="", exit_code=int(verb == "false"), duration_ms=1)

    async def stream(self, body: commands.RunCommand) -> AsyncIterator[commands.CommandEvent]:
        verb, _, rest = body.cmd.partition(" ")
        if verb == "fail":
            raise errors.SandboxNotRunningError("the sandbox is not running")
        if verb == "echo":
            for word in rest.split(" "):
                yield commands.StdoutChunk(chunk=word)
        if verb == "die":
            yield commands.StdoutChunk(chunk="begun")
            raise errors.GuestError("the guest died")
        if verb == "sleep" and not await self._sleep(float(rest), body.timeout_seconds):
            yield commands.CommandExited(exit_code=137, reason="timeout")
            return
        yield commands.CommandExited(exit_code=int(verb == "false"))

    async def _sleep(self, seconds: float, limit: float | None) -> bool:
        try:
            await asyncio.sleep(min(seconds, limit or 60))
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return seconds <= (limit or 60)


class FakeContexts:
    def __init__(self, sandbox_id: str) -> None:
        self.cancelled = asyncio.Event()
        self.finished = asyncio.Event()
        self._sandbox_id = sandbox_id
        self._contexts: dict[str, contexts.ContextInfo] = {}

    async def create(self, body: contexts.CreateContext) -> contexts.ContextInfo:
        context_id = f"k{len(self._contexts) + 1}"
        info = contexts.ContextInfo(
            id=context_id,
            session_id=context_id,
            sandbox_id=self._sandbox_id,
            language=body.language,
            created_at=datetime.now(UTC),
        )
        self._contexts[context_id] = info
        return info

    async def list(self) -> list[contexts.ContextInfo]:
        return list(self._contexts.values())

    async def close(self, context_id: str) -> None:
        self._find(context_id)
        del self._contexts[context_id]

    async def run(self, context_id: str, body: contexts.RunCode) -> contexts.Execution:
        self._find(context_id)
        started = time.monotonic()
        code = body.code.strip()
        if code == "raise":
            traceback = "Traceback (most recent call last):\nValueError: no"
            return contexts.Execution(error=traceback, exit=1)
        if code.startswith("print("):
            return contexts.Execution(stdout=f"{code[6:-1]}\n")
        if code.startswith("sleep("):
            limit = body.timeout_seconds or (body.timeout_ms or 30_000) / 1000
            seconds = float(code[6:-1])
            try:
                await asyncio.sleep(min(seconds, limit))
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            self.finished.set()
            if seconds > limit:
                return contexts.Execution(
                    stdout="so far\n",
                    error=f"cell timeout after {limit:g}s: the cell was interrupted; variables and imports are kept",
                    exit=1,
                    outcome="interrupted",
                    reason="timeout",
                )
        duration_ms = (time.monotonic() - started) * 1000
        return contexts.Execution(results=[{"text/plain": code}], duration_ms=duration_ms, execution_count=1)

    async def stream(self, context_id: str, body: contexts.RunCode) -> AsyncIterator[contexts.CellEvent]:
        execution = await self.run(context_id, body)
        if execution.stdout:
            yield contexts.StdoutChunk(chunk=execution.stdout)
        for bundle in execution.results:
            yield contexts.CellDisplay(data=bundle, info=contexts.ResultInfo())
        yield contexts.CellEnded(execution=execution)

    async def interrupt(self, context_id: str) -> contexts.Interrupted:
        self._find(context_id)
        return contexts.Interrupted(was_busy=False)

    async def restart(self, context_id: str) -> contexts.ContextInfo:
        return self._find(context_id)

    async def languages(self) -> list[str]:
        return ["python"]

    def _find(self, context_id: str) -> contexts.ContextInfo:
        if context_id not in self._contexts:
            raise errors.ContextNotFoundError("no such context")
        return self._contexts[context_id]


class FakeReading:
    def __init__(self, content: bytes, offset: int, length: int | None) -> None:
        part = content[offset:] if length is None else content[offset : offset + length]
        self.size, self.length, self._part = len(content), len(part), part

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._part), CHUNK_BYTES):
            yield self._part[start : start + CHUNK_BYTES]


class FakeFiles:
    """Path → content. Directories are whatever files have as their parents."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    @contextlib.asynccontextmanager
    async def read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncGenerator[FakeReading]:
        yield FakeReading(self._find(path), offset, length)

    async def write(
        self, path: str, chunks: AsyncIterator[bytes], *, append: bool = False, **_ignored: object
    ) -> files.FileWritten:
        if not path.startswith("/"):
            raise errors.InvalidRequestError(f"path must be absolute, got {path!r}")
        content = b"".join([chunk async for chunk in chunks])
        self.contents[path] = (self.contents.get(path, b"") if append else b"") + content
        return files.FileWritten(path=path, bytes=len(content))

    async def list(self, path: str, _depth: int = 1, **_ignored: object) -> files.DirectoryListing:
        folder = path.rstrip("/") + "/"
        names = {name[len(folder) :].split("/")[0] for name in self.contents if name.startswith(folder)}
        if not names and path != "/":
            raise errors.PathNotFoundError("no such directory")
        entries = [await self.stat(folder + name) for name in sorted(names)]
        return files.DirectoryListing(path=path, entries=entries)

    async def stat(self, path: str) -> files.FileInfo:
        is_dir = any(name.startswith(path.rstrip("/") + "/") for name in self.contents)
        size = 0 if is_dir else len(self._find(path))
        name = PurePosixPath(path).name
        return files.FileInfo(name=name, path=path, is_dir=is_dir, size=size, mode="d" if is_dir else "f", mtime=0)

    async def make_directory(self, body: files.MakeDirectory) -> files.FileInfo:
        self.contents[f"{body.path}/.keep"] = b""
        return await self.stat(body.path)

    async def move(self, body: files.MoveFile) -> files.FileInfo:
        self.contents[body.target] = self._find(body.source)
        del self.contents[body.source]
        return await self.stat(body.target)

    async def remove(self, path: str, **_ignored: object) -> None:
        gone = [name for name in self.contents if name == path or name.startswith(path + "/")]
        if not gone:
            raise errors.PathNotFoundError("no such file")
        for name in gone:
            del self.contents[name]

    def _find(self, path: str) -> bytes:
        if path not in self.contents:
            raise errors.PathNotFoundError("no such file")
        return self.contents[path]
