"""Values to bytes and back: request targets, JSON bodies, answers. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, TypeVar, cast
from urllib.parse import quote_from_bytes

import msgspec

from cellbox.errors import APIError
from cellbox.protocol.operations import Operation

T = TypeVar("T")
RemotePath = str | bytes | PurePosixPath
"""A path in a sandbox. `bytes` can name any file; in a `str`, bytes that are no UTF-8 stand as surrogate escapes."""
Query = Iterable[tuple[str, str | bytes | int | bool | None]]

_encode = msgspec.json.Encoder().encode


def remote_path(path: RemotePath) -> str:
    """A path as JSON documents carry it."""
    return path.decode("utf-8", "surrogateescape") if isinstance(path, bytes) else str(path)


def target(prefix: str, operation: Operation[Any, Any], ids: Mapping[str, str], query: Query = ()) -> str:
    """The path and query of a request.

    Raises:
        ValueError: An identifier is empty or a step up the path, which would address something else.
    """
    path = operation.path
    if ids:
        path = path.format(**{name: _identifier(name, value) for name, value in ids.items()})
    pairs = "&".join(f"{name}={_query_value(value)}" for name, value in query if value is not None)
    return f"{prefix}{path}?{pairs}" if pairs else prefix + path


def _identifier(name: str, value: str) -> str:
    if value in ("", ".", ".."):
        raise ValueError(f"{name} can't be {value!r}")
    return quote_from_bytes(value.encode("utf-8", "surrogateescape"), safe="")


def _query_value(value: str | bytes | int | bool | None) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
    return quote_from_bytes(raw, safe="/")


def encode_body(body: object) -> bytes:
    """A JSON document. Strings with surrogate escapes travel as `\\udcXX`, which msgspec refuses to write."""
    try:
        return _encode(body)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(body)).encode()


@lru_cache(maxsize=256)
def _decoder(shape: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)


def decode_json(data: bytes | bytearray | str, shape: type[T]) -> T:
    """Read a JSON document as a value.

    Raises:
        msgspec.DecodeError: It is no JSON, or of another shape.
    """
    decoder = cast("msgspec.json.Decoder[T]", _decoder(shape))
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # Perhaps a lone surrogate, as in the name of a file that is no UTF-8: the standard library lets it pass.
        try:
            return msgspec.convert(json.loads(data), shape)
        except ValueError:
            raise error from None


def decode_answer(operation: Operation[Any, T], status: int, content_type: str, data: bytes) -> T:
    """Read the body of a successful answer.

    Raises:
        APIError: The body is not what the operation promises; another server may be listening there.
    """
    shape: Any = operation.result
    if shape is type(None):
        return cast("T", None)
    if shape is bytes:
        return cast("T", data)
    if shape is str:
        return cast("T", data.decode("utf-8", "replace"))
    try:
        return decode_json(data, operation.result)
    except (ValueError, msgspec.DecodeError) as error:
        raise APIError(
            f"The answer to {operation.name} (HTTP {status}, {content_type or 'no content type'}) "
            "is not what a Cellbox daemon sends",
            detail=str(error),
            http_status=status,
        ) from error
