"""Answers that are no success, as exceptions, and the time-outs among them that are results after all. No I/O."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import msgspec

from cellbox.client._codec import decode_json
from cellbox.errors import (
    APIError,
    AuthenticationError,
    CapacityError,
    CellboxError,
    ConflictError,
    ConnectionLostError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    QuotaExceededError,
    TooLargeError,
)
from cellbox.protocol.account import ErrorBody
from cellbox.protocol.commands import CommandExited, CommandResult
from cellbox.protocol.contexts import CellEnded, Execution

Headers = list[tuple[bytes, bytes]]

_BY_STATUS: dict[int, type[APIError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    413: TooLargeError,
    422: InvalidRequestError,
    429: QuotaExceededError,
    500: InternalError,
}
_PARTIAL_COMMAND, _PARTIAL_CELL = "command_timeout", "cell_timeout"
_BACKOFF_CAP_SECONDS = 15.0


def header(headers: Headers, name: bytes) -> str:
    """The first value of a header, or nothing."""
    for key, value in headers:
        if key.lower() == name:
            return value.decode("latin-1")
    return ""


def error_from_answer(status: int, headers: Headers, body: bytes) -> APIError:
    """The exception for an answer that is no success, whoever sent it: daemon, proxy or something else."""
    retry_after = retry_after_seconds(header(headers, b"retry-after"))
    try:
        envelope = decode_envelope(body)
    except ValueError:
        return _error_of_a_stranger(status, headers, body, retry_after)
    return error_from_envelope(status, envelope, retry_after, header(headers, b"x-request-id"))


def decode_envelope(body: bytes) -> ErrorBody:
    """Read the daemon's own error document.

    Raises:
        ValueError: It is something else.
    """
    try:
        return decode_json(body, ErrorBody)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def error_from_envelope(status: int, envelope: ErrorBody, retry_after: float | None, request_id: str = "") -> APIError:
    """The exception that the daemon names; one it names in words of a newer version is typed by its status."""
    kind = APIError.by_code.get(envelope.code) or _BY_STATUS.get(status, APIError)
    if status == 503 and retry_after is not None and envelope.code not in APIError.by_code:
        kind = CapacityError
    return kind(
        envelope.error,
        detail=envelope.detail,
        details=envelope.details,
        retry_after_seconds=retry_after,
        request_id=envelope.request_id or request_id or None,
        http_status=status,
    )


def _error_of_a_stranger(status: int, headers: Headers, body: bytes, retry_after: float | None) -> APIError:
    kind = _BY_STATUS.get(status, APIError) if status < 500 else APIError
    text = " ".join(body[:300].decode("utf-8", "replace").split())
    if 300 <= status < 400:
        text = f"it points to {header(headers, b'location')!r}; use that as the API address"
    return kind(
        f"HTTP {status} from something that is no Cellbox daemon",
        detail=text or "the answer is empty",
        retry_after_seconds=retry_after,
        request_id=header(headers, b"x-request-id") or None,
        http_status=status,
    )


def error_from_close(code: int, reason: str) -> Exception | None:
    """What a WebSocket's close code stands for; None when it was closed in good order."""
    if code == 1000:
        return None
    if 4400 <= code < 4600:
        name, _, message = reason.partition(": ")
        return error_from_envelope(code - 4000, ErrorBody(error=message or reason, code=name), None)
    return ConnectionLostError(f"The daemon closed the WebSocket (code {code}{f': {reason}' if reason else ''})")


def retry_after_seconds(value: str) -> float | None:
    """A `Retry-After` header: seconds, perhaps with a fraction, or a date."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        from email.utils import parsedate_to_datetime

        try:
            moment = parsedate_to_datetime(value)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if seconds == seconds else None


def capacity_delays(error: CellboxError, attempt: int, left_seconds: float) -> float | None:
    """How long to wait before asking once more for a sandbox, or None to give up.

    Only refusals that say when to come back are tried again: with them the daemon vouches that nothing was created.
    """
    if not isinstance(error, APIError) or error.retry_after_seconds is None or error.http_status not in (429, 503):
        return None
    jitter = random.uniform(0, min(_BACKOFF_CAP_SECONDS, 2.0**attempt))  # noqa: S311
    delay = error.retry_after_seconds + jitter
    return delay if delay <= left_seconds else None


def partial_command(error: APIError) -> CommandResult | None:
    """What a command printed before its time was up, if that is what the error is about."""
    return _detail(error.details, "result", CommandResult)


def partial_cell(error: APIError) -> Execution | None:
    """What came of a cell before its time was up, if that is what the error is about."""
    return _detail(error.details, "execution", Execution)


def partial_event(envelope: ErrorBody) -> CommandExited | CellEnded | None:
    """The last event of a stream whose command or cell ran out of time; its output was streamed before."""
    if envelope.code == _PARTIAL_COMMAND and (result := _detail(envelope.details, "result", CommandResult)):
        return CommandExited(
            exit_code=result.exit_code,
            duration_ms=result.duration_ms,
            reason=result.reason,
            survivors=result.survivors,
        )
    if envelope.code == _PARTIAL_CELL and (execution := _detail(envelope.details, "execution", Execution)):
        return CellEnded(execution=execution)
    return None


def _detail(details: dict[str, Any], name: str, shape: type[Any]) -> Any:
    if name not in details:
        return None
    try:
        return msgspec.convert(details[name], shape)
    except msgspec.ValidationError:
        return None
