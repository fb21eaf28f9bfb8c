"""Reads JSON bodies: whole, bounded and strict, but content with the ways in which clients send none."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from starlette.types import Receive

from cellbox import errors
from cellbox.server.call import CallerGone, check_length, too_large

# What an HTML form can send to another site without asking first. JSON under such a name is refused (attack: T092).
_FORM_TYPES = (b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain")


async def read_body(receive: Receive, headers: dict[bytes, bytes], limit: int) -> bytes:
    """Collect the whole body."""
    check_length(headers, limit)
    pieces: list[bytes] = []
    size = 0
    while True:
        message: Any = await receive()
        if message["type"] != "http.request":
            raise CallerGone
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        if not message.get("more_body", False):
            return piece if not pieces else b"".join([*pieces, piece])
        pieces.append(piece)


def refuse_encoded(headers: dict[bytes, bytes]) -> None:
    """Refuse compressed bodies: they would be stored as they are, and inflating them is an attack of its own."""
    encoding = headers.get(b"content-encoding", b"identity").lower()
    if encoding not in (b"identity", b""):
        name = encoding.decode("latin-1")[:40]
        raise errors.InvalidRequestError(f"content encoding {name!r} is not supported", http_status=415)


def decode_body(decoder: msgspec.json.Decoder[Any], headers: dict[bytes, bytes], body: bytes) -> Any:
    """Decode a body strictly; an empty one stands for an empty object."""
    if not body:
        body = b"{}"
    elif headers.get(b"content-type", b"").lower().startswith(_FORM_TYPES):
        raise errors.InvalidRequestError("send JSON as application/json", http_status=415)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise errors.InvalidRequestError(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _decode_surrogates(decoder.type, body, error)
    except RecursionError:
        raise errors.InvalidRequestError("the body is nested too deeply") from None


def _decode_surrogates(shape: Any, body: bytes, first_error: Exception) -> Any:
    """Try once more with the standard library, which takes `\\udcxx`: a byte of a file name that is no UTF-8."""
    try:
        if b"\\u" not in body:
            raise first_error
        return msgspec.convert(json.loads(body), shape)
    except msgspec.ValidationError as error:
        raise errors.InvalidRequestError(str(error)) from None
    except (ValueError, RecursionError):
        raise errors.InvalidRequestError(f"the body is no JSON: {first_error}") from None
