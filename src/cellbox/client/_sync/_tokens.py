"""The caller's API keys."""

from __future__ import annotations

from cellbox.client._sync._connection import Connection
from cellbox.protocol import operations
from cellbox.protocol.account import CreatedToken, CreateToken, TokenInfo


class Tokens:
    """API keys of the caller's owner; of everyone for an admin."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(
        self, label: str, *, owner: str | None = None, is_admin: bool = False, expires_in_days: float | None = None
    ) -> CreatedToken:
        """Create a key. Its `token` is shown this once and stored only as a hash.

        Raises:
            PermissionDeniedError: Only an admin may create keys for other owners or admin keys.
        """
        body = CreateToken(label=label, owner=owner, is_admin=is_admin, expires_in_days=expires_in_days)
        return self._connection.call(operations.create_token, body)

    def list(self) -> list[TokenInfo]:
        """The keys, without the keys themselves."""
        return (self._connection.call(operations.list_tokens)).items

    def delete(self, prefix: str) -> None:
        """Revoke a key at once.

        Raises:
            KeyNotFoundError: No key of the caller begins with `prefix`.
        """
        self._connection.call(operations.delete_token, ids={"prefix": prefix})

# Generated from _async/_tokens.py by tools/unasync.py: edit that, and run it again.
