"""The two kinds of values on the wire: what a caller sends and what the server answers."""

from __future__ import annotations

from typing import Any, dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class _ValueMeta(msgspec.StructMeta):
    """Makes every value frozen with keyword-only fields (msgspec inherits neither), and tells type checkers so."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        return super().__new__(mcls, name, bases, namespace, **{"frozen": True, "kw_only": True, **options})  # pyright: ignore[reportArgumentType]


class Value(msgspec.Struct, metaclass=_ValueMeta):
    """An answer. Unknown fields are ignored, so that an older client can read a newer server."""


class RequestBody(msgspec.Struct, metaclass=_ValueMeta, forbid_unknown_fields=True):
    """A request. An unknown field is an error: a misspelt option must never be silently without effect."""


JsonObject = dict[str, Any]
