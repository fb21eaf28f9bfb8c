"""Errors as this wire tells them: its own codes where it has one for the case, ours in capitals where it has none."""

from __future__ import annotations

from cellbox import errors
from cellbox.server.answers import TimedOutError, error_body, error_status
from cellbox.server.sandkasten.values import ErrorBody

_CODES: dict[str, str] = {
    "unauthorized": "UNAUTHORIZED",
    "unknown_template": "INVALID_IMAGE",
    "sandbox_not_found": "SESSION_NOT_FOUND",
    "command_timeout": "COMMAND_TIMEOUT",
    "internal_error": "INTERNAL_ERROR",
}


def render_error(error: errors.APIError | TimedOutError, request_id: str) -> tuple[int, ErrorBody]:
    """Return the status and the body for an error."""
    told = error_body(error, request_id)
    status = 504 if isinstance(error, TimedOutError) else error_status(error)
    message = told.error if not told.detail else f"{told.error}: {told.detail}"
    code = _CODES.get(told.code, told.code.upper())
    return status, ErrorBody(error_code=code, message=message, **({"details": told.details} if told.details else {}))
