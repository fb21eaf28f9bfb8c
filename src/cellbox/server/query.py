"""Request targets as bytes: names in a sandbox need be no UTF-8, and must come through unchanged."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import unquote_to_bytes

from cellbox.errors import InvalidRequestError

_MAX_PARAMETERS = 64


def parse_query(raw: bytes) -> dict[str, str]:
    """Decode a query string. Bytes that are no UTF-8 become surrogate escapes; a repeated name is an error."""
    if not raw:
        return {}
    query: dict[str, str] = {}
    pairs = raw.split(b"&", _MAX_PARAMETERS)
    if len(pairs) > _MAX_PARAMETERS:
        raise InvalidRequestError(f"more than {_MAX_PARAMETERS} query parameters")
    for pair in pairs:
        if not pair:
            continue
        name, _, value = pair.partition(b"=")
        key = _decode(name)
        if key in query:
            raise InvalidRequestError(f"query parameter {key[:40]!r} is given twice")
        query[key] = _decode(value)
    return query


def check_query(query: Collection[str], known: Collection[str]) -> None:
    """Refuse parameters that would have no effect: most often they are misspelt."""
    for name in query:
        if name not in known and name != "access_token":
            allowed = ", ".join(known) or "there are none here"
            raise InvalidRequestError(f"unknown query parameter {name[:40]!r}", detail=f"known: {allowed}")


def split_path(raw_path: bytes) -> list[str]:
    """The parts of a path, decoded one by one: an encoded slash never separates.

    Raises `ValueError` for what no route can match.
    """
    return [
        part.decode("ascii") if b"%" not in part else unquote_to_bytes(part).decode("utf-8")
        for part in raw_path.split(b"/")[1:]
    ]


def _decode(text: bytes) -> str:
    return unquote_to_bytes(text.replace(b"+", b" ")).decode("utf-8", "surrogateescape")
