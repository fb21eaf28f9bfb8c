"""API keys: what is stored, who gets in, and that a revoked one is out at once."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellbox.control.keys import Keys
from cellbox.errors import AuthenticationError, ConfigurationError, KeyNotFoundError
from cellbox.store.sqlite import SqliteStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "cellbox.db")
    await store.start()
    yield store
    await store.aclose()


@pytest.fixture
async def keys(store: SqliteStore, tmp_path: Path) -> Keys:
    keys = Keys(store, tmp_path)
    await keys.start()
    return keys


async def test_a_key_is_160_random_bits_and_shown_once(keys: Keys, tmp_path: Path) -> None:
    created = [await keys.create("laptop", owner="ada") for _ in range(20)]
    assert all(re.fullmatch("pds_[0-9a-f]{40}", key.token) and key.token.startswith(key.prefix) for key in created)
    assert len({key.token for key in created}) == 20
    assert not any(hasattr(info, "token") for info in keys.list())
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert not any(key.token[12:].encode() in stored for key in created)
    assert (tmp_path / "pepper").stat().st_mode & 0o777 == 0o600


async def test_a_key_leads_to_its_owner(keys: Keys) -> None:
    ada = await keys.create("a", owner="ada")
    root = await keys.create("b", owner="root", is_admin=True)
    assert keys.authenticate(ada.token).owner == "ada"
    assert not keys.authenticate(ada.token).is_admin
    assert keys.authenticate(root.token).is_admin


@pytest.mark.parametrize("secret", ["", "pds_", "pds_" + "0" * 40, "é" * 44, "\udcff", "x" * 10_000])
async def test_anything_else_is_refused(keys: Keys, secret: str) -> None:
    await keys.create("a", owner="ada")
    with pytest.raises(AuthenticationError):
        keys.authenticate(secret)


async def test_a_revoked_key_is_refused_at_once_whoever_revoked_it(keys: Keys, tmp_path: Path) -> None:
    first, second = await keys.create("a", owner="ada"), await keys.create("b", owner="ada")
    keys.authenticate(first.token)
    await keys.revoke(first.prefix)
    with pytest.raises(AuthenticationError):
        keys.authenticate(first.token)

    caller = keys.authenticate(second.token)
    other = SqliteStore(tmp_path / "cellbox.db")  # as `cellbox key revoke` would beside the daemon
    await other.start()
    await Keys(other, tmp_path).revoke(second.prefix)
    await other.aclose()
    with pytest.raises(AuthenticationError):
        keys.authenticate(second.token)
    assert not keys.is_current(caller)
    assert keys.is_empty


async def test_an_expired_key_is_refused(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    key = await keys.create("a", owner="ada", expires_in_days=1)
    caller = keys.authenticate(key.token)
    later = time.time() + 86401
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(AuthenticationError, match="expired"):
        keys.authenticate(key.token)
    assert not keys.is_current(caller)


async def test_only_an_owners_own_keys_are_listed_and_revoked(keys: Keys) -> None:
    ada, eve = await keys.create("a", owner="ada"), await keys.create("b", owner="eve")
    assert [info.prefix for info in keys.list("ada")] == [ada.prefix]
    assert len(keys.list()) == 2
    for prefix in (eve.prefix, "pds_00000000"):
        with pytest.raises(KeyNotFoundError):
            await keys.revoke(prefix, owner="ada")
    assert keys.authenticate(eve.token)


async def test_last_use_is_shown_at_once_and_stored_lazily(keys: Keys, store: SqliteStore) -> None:
    key = await keys.create("a", owner="ada")
    assert keys.list()[0].last_used_at is None
    version = store.version()
    keys.authenticate(key.token)
    assert keys.list()[0].last_used_at is not None
    assert store.version() == version
    await keys.aclose()
    assert store.list_keys()[0].last_used_at is not None


async def test_the_bootstrap_key_exists_once_and_survives_restarts(store: SqliteStore, tmp_path: Path) -> None:
    secret = "pds_" + "ab" * 16
    for _ in range(2):
        keys = Keys(store, tmp_path)
        await keys.start(secret)
        caller = keys.authenticate(secret)
        assert (caller.owner, caller.is_admin) == ("admin", True)
    assert len(keys.list()) == 1
    with pytest.raises(ConfigurationError, match="begins like another key"):
        await Keys(store, tmp_path).start(secret[:12] + "0" * 32)


@pytest.mark.parametrize("secret", ["secret", "pds_short", "pds_" + "AB" * 16, "pds_" + "ab" * 16 + "\n"])
async def test_a_malformed_bootstrap_key_is_refused_and_not_repeated(
    store: SqliteStore, tmp_path: Path, secret: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await Keys(store, tmp_path).start(secret)
    assert secret.strip() not in str(caught.value)


async def test_keys_without_their_pepper_are_a_clear_error(keys: Keys, store: SqliteStore, tmp_path: Path) -> None:
    await keys.create("a", owner="ada")
    (tmp_path / "pepper").unlink()
    with pytest.raises(ConfigurationError, match="pepper is missing"):
        await Keys(store, tmp_path).start()


async def test_timing_does_not_tell_a_known_prefix(keys: Keys) -> None:
    key = await keys.create("a", owner="ada")
    known, unknown = key.token[:-1] + "x", "pds_" + "0" * 40

    def sample(secret: str) -> float:
        started = time.perf_counter()
        with pytest.raises(AuthenticationError):
            keys.authenticate(secret)
        return time.perf_counter() - started

    pairs = [(sample(known), sample(unknown)) for _ in range(2000)]
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    assert abs(medians[0] - medians[1]) < 5e-6
