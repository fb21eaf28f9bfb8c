"""API keys: who may call, and as whom. A key is shown once and kept only as an HMAC under the installation's pepper.

`authenticate` is on the path of every request, so the rows are kept in memory; the store's version number tells when
that copy is stale, also when another process changed a key. A revoked key is therefore refused from that moment on.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from cellbox.errors import AuthenticationError, ConfigurationError, InternalError, KeyNotFoundError
from cellbox.protocol.account import CreatedToken, TokenInfo
from cellbox.store.base import KeyRow, Store

KEY_PATTERN = re.compile(r"pds_[0-9a-f]{32,128}")
_PREFIX_LENGTH = len("pds_") + 8
_SECRET_BYTES = 20  # 160 bits: far beyond guessing, so a fast hash is the right one
_NO_DIGEST = bytes(32)

LOCAL_OWNER = "local"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request."""

    owner: str
    """Everything is created under this name and seen by its keys only."""
    is_admin: bool
    method: Literal["token", "socket"]
    key_prefix: str = ""


LOCAL_CALLER = Caller(owner=LOCAL_OWNER, is_admin=True, method="socket")
"""The user who runs the daemon, calling through its private socket."""


class Keys:
    """The installation's API keys."""

    def __init__(self, store: Store, data_dir: Path) -> None:
        self._store = store
        self._pepper_file = data_dir / "pepper"
        self._pepper = b""
        self._rows: dict[str, KeyRow] = {}
        self._version: int | None = None
        self._last_used: dict[str, float] = {}

    async def start(self, bootstrap_key: str = "") -> None:
        """Load the keys, and make sure that `bootstrap_key`, if any, is one of them.

        Raises `ConfigurationError` when that key is malformed, or when the pepper of existing keys is missing.
        """
        self._pepper = _load_pepper(self._pepper_file, may_create=not self._store.list_keys())
        if bootstrap_key:
            await self._add_bootstrap_key(bootstrap_key)

    async def aclose(self) -> None:
        await self.flush()

    async def create(
        self, label: str, *, owner: str, is_admin: bool = False, expires_in_days: float | None = None
    ) -> CreatedToken:
        """Make a key. This is the only time that the key itself is seen."""
        now = time.time()
        for _ in range(8):  # the shown prefix has 32 bits, so that two keys may draw the same one
            secret = f"pds_{secrets.token_hex(_SECRET_BYTES)}"
            row = KeyRow(
                prefix=secret[:_PREFIX_LENGTH],
                digest=self._digest(secret),
                owner=owner,
                label=label,
                is_admin=is_admin,
                created_at=now,
                expires_at=None if expires_in_days is None else now + expires_in_days * 86400,
            )
            if await self._store.insert_key(row):
                info = _info(row)
                return CreatedToken(token=secret, **{name: getattr(info, name) for name in info.__struct_fields__})
        raise InternalError("no free key prefix was found")

    def authenticate(self, secret: str) -> Caller:
        """Return whom a key belongs to. Raises `AuthenticationError` for anything but a known, current key."""
        row = self._current().get(secret[:_PREFIX_LENGTH])
        # Computed and compared for an unknown prefix too, so that timing doesn't tell which prefixes exist.
        matches = hmac.compare_digest(self._digest(secret), row.digest if row is not None else _NO_DIGEST)
        if row is None or not matches:
            raise AuthenticationError("unauthorized", detail="invalid api token")
        now = time.time()
        if row.expires_at is not None and row.expires_at <= now:
            raise AuthenticationError("unauthorized", detail="the api token has expired")
        self._last_used[row.prefix] = now
        return Caller(owner=row.owner, is_admin=row.is_admin, method="token", key_prefix=row.prefix)

    def is_current(self, caller: Caller) -> bool:
        """Whether the key that `caller` came with is still good. For answers that take long."""
        if caller.method != "token":
            return True
        row = self._current().get(caller.key_prefix)
        return row is not None and (row.expires_at is None or row.expires_at > time.time())

    @property
    def is_empty(self) -> bool:
        """True when nobody could authenticate."""
        return not self._current()

    def list(self, owner: str | None = None) -> list[TokenInfo]:
        """The keys of one owner, or all of them; newest first."""
        rows = self._current().values()
        return [_info(row, self._last_used.get(row.prefix)) for row in rows if owner is None or row.owner == owner]

    async def revoke(self, prefix: str, *, owner: str | None = None) -> None:
        """Make a key invalid from now on. With `owner`, somebody else's key counts as unknown."""
        row = self._current().get(prefix)
        if row is None or owner not in (None, row.owner) or not await self._store.delete_key(prefix):
            raise KeyNotFoundError("no such api key")
        self._last_used.pop(prefix, None)

    async def flush(self) -> None:
        """Write down when keys were last used. Done now and then, since nothing depends on it."""
        if self._last_used:
            used, self._last_used = self._last_used, {}
            await self._store.touch_keys(used)

    def _current(self) -> dict[str, KeyRow]:
        version = self._store.version()
        if version != self._version:
            self._rows = {row.prefix: row for row in self._store.list_keys()}
            self._version = version
        return self._rows

    def _digest(self, secret: str) -> bytes:
        return hmac.digest(self._pepper, secret.encode(errors="replace"), "sha256")

    async def _add_bootstrap_key(self, secret: str) -> None:
        if not KEY_PATTERN.fullmatch(secret):
            raise ConfigurationError("CELLBOX_BOOTSTRAP_KEY must be `pds_` and at least 32 lower-case hex digits")
        prefix, digest = secret[:_PREFIX_LENGTH], self._digest(secret)
        row = KeyRow(
            prefix=prefix, digest=digest, owner="admin", label="bootstrap", is_admin=True, created_at=time.time()
        )
        if not await self._store.insert_key(row) and self._current()[prefix].digest != digest:
            raise ConfigurationError(
                f"CELLBOX_BOOTSTRAP_KEY begins like another key ({prefix}): choose another, or revoke that one first"
            )


def _info(row: KeyRow, last_used_at: float | None = None) -> TokenInfo:
    used = last_used_at or row.last_used_at
    return TokenInfo(
        prefix=row.prefix,
        label=row.label,
        owner=row.owner,
        created_at=_time(row.created_at),
        is_admin=row.is_admin,
        expires_at=None if row.expires_at is None else _time(row.expires_at),
        last_used_at=None if used is None else _time(used),
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _load_pepper(file: Path, *, may_create: bool) -> bytes:
    """Read the 32 bytes that key digests are made with; beside the database, never in it or in a backup of it."""
    try:
        pepper = file.read_bytes()
    except FileNotFoundError:
        if not may_create:
            raise ConfigurationError(
                f"{file} is missing, so no API key can be checked: restore it, or remove the database's keys"
            ) from None
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        pepper = secrets.token_bytes(32)
        # Linked into place when it is whole: two starts at once must not end up with different peppers.
        draft = file.with_name(f"pepper.{secrets.token_hex(8)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(pepper)
                stream.flush()
                os.fsync(stream.fileno())
            os.link(draft, file)
        except FileExistsError:
            pepper = file.read_bytes()
        finally:
            draft.unlink()
    if len(pepper) != 32:
        raise ConfigurationError(f"{file} is damaged: it must have 32 bytes")
    return pepper
