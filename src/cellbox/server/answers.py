"""How answers look on the wire: JSON documents, and one shape for everything that went wrong."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from starlette.types import Send

from cellbox import errors
from cellbox.protocol.account import ErrorBody
from cellbox.protocol.commands import DEFAULT_COMMAND_TIMEOUT_SECONDS, CommandResult, RunCommand
from cellbox.protocol.contexts import Execution
from cellbox.protocol.values import Value
from cellbox.server.call import Answer

RawHeaders = list[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder(enc_hook=str).encode
_JSON = (b"content-type", b"application/json")
_NOSNIFF = (b"x-content-type-options", b"nosniff")


class TimedOutError(Exception):
    """A command or cell was stopped at its time limit.

    Within `control` that is a result; on this wire it is a 500 with the word "timeout", since that is what clients
    raise their timeout exceptions by. The result travels in `details`, so that nothing that was printed is lost.
    """

    def __init__(self, code: str, message: str, details: dict[str, Any]) -> None:
        super().__init__(message)
        self.code, self.message, self.details = code, message, details


def raise_if_timed_out(body: RunCommand, result: CommandResult) -> None:
    """Raise `TimedOutError` for a command that was stopped at one of its time limits."""
    if result.reason == "timeout":
        what = f"command timeout after {body.timeout_seconds or DEFAULT_COMMAND_TIMEOUT_SECONDS:g}s"
    elif result.reason == "idle_timeout":
        what = f"command timeout after {body.idle_timeout_seconds or 0:g}s without output"
    else:
        return
    raise TimedOutError("command_timeout", what, {"result": result})


def raise_if_cell_timed_out(execution: Execution) -> None:
    """Raise `TimedOutError` for a cell that was stopped at its time limit."""
    if execution.reason == "timeout" and execution.outcome != "completed":
        message = execution.error or ""
        if not message.startswith("cell timeout"):
            message = f"cell timeout: the cell was {execution.outcome} at its time limit"
        raise TimedOutError("cell_timeout", message, {"execution": execution})


def json_bytes(value: object) -> bytes:
    """Encode a value as JSON. File names that are no UTF-8 hold lone surrogates, which come out as `\\udcxx`."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return ascii_json_bytes(value)


def ascii_json_bytes(value: object) -> bytes:
    """The same in ASCII only, so that no client's idea of lines or of the character set can break it."""
    return json.dumps(msgspec.to_builtins(value, enc_hook=str), separators=(",", ":")).encode("ascii")


async def send_json(send: Send, status: int, value: object, headers: RawHeaders) -> None:
    await send_bytes(send, status, json_bytes(value), [_JSON, _NOSNIFF, *headers])


async def send_bytes(send: Send, status: int, body: bytes, headers: RawHeaders) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_empty(send: Send, status: int, headers: RawHeaders) -> None:
    if status != 204:
        headers.append((b"content-length", b"0"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


class BytesAnswer(Answer):
    """A small body that is no JSON."""

    def __init__(self, body: bytes, content_type: str, status: int = 200) -> None:
        self._body, self._content_type, self._status = body, content_type.encode(), status

    async def send_to(self, send: Send) -> None:
        headers: RawHeaders = [(b"content-type", self._content_type), _NOSNIFF]
        await send_bytes(send, self._status, self._body, headers)


def as_api_error(error: Exception) -> errors.APIError | TimedOutError | None:
    """Find the error to tell the caller about; None means that it is a fault of ours, with nothing to tell."""
    if isinstance(error, errors.APIError | TimedOutError):
        return error
    if isinstance(error, msgspec.ValidationError):
        return errors.InvalidRequestError(str(error))
    return None


def error_body(error: errors.APIError | TimedOutError, request_id: str) -> ErrorBody:
    """Put an error into its wire form."""
    if isinstance(error, TimedOutError):
        details = {name: msgspec.to_builtins(value) for name, value in error.details.items()}
        return ErrorBody(error=error.message, code=error.code, details=details, request_id=request_id)
    is_ours = error.http_status >= 500
    return ErrorBody(
        error=without_retry_words(error.message) if is_ours else error.message,
        code=error.code,
        detail=without_retry_words(error.detail) if is_ours and error.detail else error.detail,
        details=error.details,
        request_id=request_id,
    )


def render_error(error: errors.APIError | TimedOutError, request_id: str) -> tuple[int, Value]:
    """Return the status and the body of an error."""
    return error_status(error), error_body(error, request_id)


def error_status(error: errors.APIError | TimedOutError) -> int:
    return 500 if isinstance(error, TimedOutError) else error.http_status


def error_headers(error: errors.APIError | TimedOutError) -> RawHeaders:
    headers: RawHeaders = []
    if isinstance(error, TimedOutError):
        return headers
    if error.retry_after_seconds is not None:
        headers.append((b"retry-after", f"{error.retry_after_seconds:g}".encode()))
    if error.http_status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


# Clients of this wire look for these words in a 5xx. The first three make them send a command again, the others make
# them report a command's timeout: neither must happen because of what some library wrote into its message.
_RETRY_WORDS = re.compile(
    r"connect: connection refused|no route to host|i/o timeout|deadline exceeded|time-?outs?", re.IGNORECASE
)
_PLAIN_WORDS = {
    "connect: connection refused": "connecting was refused",
    "no route to host": "the host can't be reached",
    "i/o timeout": "input or output took too long",
    "deadline exceeded": "it took too long",
}


def without_retry_words(text: str) -> str:
    """Put a message into words that trigger nothing in clients."""
    return _RETRY_WORDS.sub(lambda match: _PLAIN_WORDS.get(match[0].lower(), "time limit"), text)
