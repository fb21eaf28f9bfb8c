"""Every error Cellbox raises, with the code it travels under and its HTTP status.

```
CellboxError
├── ConfigurationError            a setting or environment variable makes no sense
├── DaemonUnavailableError        no daemon answers, or a private one could not be started
├── ConnectionLostError           the answer never came whole; whether the operation ran is unknown
├── ModelError                    the language model of `cellbox chat` refused, failed or broke off
└── APIError                      the daemon refused or failed; carries `code`, `status`, `request_id`
    ├── InvalidRequestError       400
    │   ├── UnknownTemplateError  400
    │   └── UnknownLanguageError  400
    ├── AuthenticationError       401
    ├── PermissionDeniedError     403
    ├── NotFoundError             404
    │   ├── SandboxNotFoundError
    │   ├── ContextNotFoundError
    │   ├── ShellNotFoundError
    │   ├── TemplateNotFoundError
    │   ├── KeyNotFoundError
    │   ├── WorkspaceNotFoundError
    │   ├── SnapshotNotFoundError
    │   └── PathNotFoundError     also a FileNotFoundError
    ├── ConflictError             409
    │   ├── SandboxNotRunningError
    │   ├── SnapshotUnusableError damaged, or made by another engine, processor or Cellbox
    │   ├── PathConflictError     a directory where a file is needed, or the reverse; also an OSError
    │   ├── TemplateExistsError
    │   ├── WorkspaceExistsError
    │   └── WorkspaceInUseError   sandboxes have it mounted
    ├── TooLargeError             413
    ├── QuotaExceededError        429
    ├── InternalError             500
    ├── TemplateBuildError        500
    ├── GuestError                502, the guest broke its protocol or died while it was asked
    ├── EngineUnavailableError    503
    ├── CapacityError             503, sent with `Retry-After`; nothing was created
    ├── StoreUnavailableError     503
    └── StorageFullError          507, no space left inside the sandbox or on the host
```

*A command or cell that failed* is no exception: it is a result with an exit code or an `error` text. An exception
means that *the platform* could not do what was asked. The two exceptions to that are opt-in: `CommandFailedError`
from `exec(…, check=True)` and `CodeFailedError` from `Execution.raise_for_error()`.
"""

from __future__ import annotations

from typing import Any, ClassVar


class CellboxError(Exception):
    """Root of all errors raised by Cellbox."""


class ConfigurationError(CellboxError):
    """A setting, file or environment variable makes no sense; the message names it."""


class DaemonUnavailableError(CellboxError):
    """No daemon answers at the configured address, or a private one could not be started."""


class ConnectionLostError(CellboxError):
    """The connection broke before the answer was complete. Whether the operation ran is unknown."""


class ModelError(CellboxError):
    """The service of a language model can't be reached, refused, failed, or broke off in the middle of its answer."""


class CommandFailedError(CellboxError):
    """Raised by `exec(…, check=True)`. `result` holds what the command printed."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class CodeFailedError(CellboxError):
    """Raised by `Execution.raise_for_error()`. `execution` holds everything that came of the cell."""

    def __init__(self, message: str, execution: Any) -> None:
        super().__init__(message)
        self.execution = execution


class APIError(CellboxError):
    """The daemon refused a request or failed at it.

    Subclasses declare the `code` under which they cross the wire and the HTTP `status`; a code that this client
    does not know becomes a plain `APIError`, so an older client meets a newer daemon with grace.
    """

    code: ClassVar[str] = "api_error"
    status: ClassVar[int] = 500
    by_code: ClassVar[dict[str, type[APIError]]] = {}

    def __init_subclass__(cls, *, code: str, status: int, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.code, cls.status = code, status
        if APIError.by_code.setdefault(code, cls) is not cls:
            raise TypeError(f"error code {code!r} is already taken by {APIError.by_code[code].__name__}")

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        details: dict[str, Any] | None = None,
        retry_after_seconds: float | None = None,
        request_id: str | None = None,
        http_status: int | None = None,
    ) -> None:
        """`detail` is a second sentence for people, `details` data for programs.

        `http_status` is what the daemon answered with, where it differs from the class's own `status`.
        """
        super().__init__(message if detail is None else f"{message} ({detail})")
        self.message = message
        self.detail = detail
        self.details: dict[str, Any] = details or {}
        self.retry_after_seconds = retry_after_seconds
        self.request_id = request_id
        self.http_status = http_status if http_status is not None else type(self).status


class InvalidRequestError(APIError, code="invalid_request", status=400):
    """The request is malformed or asks for something that makes no sense; the message says what to change."""


class UnknownTemplateError(InvalidRequestError, code="unknown_template", status=400):
    """The template named at create is not in the catalogue."""


class UnknownLanguageError(InvalidRequestError, code="unknown_language", status=400):
    """No kernel for this language in the template; `details["languages"]` lists what there is."""


class AuthenticationError(APIError, code="unauthorized", status=401):
    """No API key was sent, or the daemon does not know it."""


class PermissionDeniedError(APIError, code="permission_denied", status=403):
    """The key is good but not for this, or the file's permissions forbid it."""


class NotFoundError(APIError, code="not_found", status=404):
    """What was named does not exist, or belongs to someone else: the two look the same."""


class SandboxNotFoundError(NotFoundError, code="sandbox_not_found", status=404):
    """No such sandbox: never created, killed, or past its TTL."""


class ShellNotFoundError(NotFoundError, code="shell_not_found", status=404):
    """No such shell in this sandbox: it was closed or never was."""


class ContextNotFoundError(NotFoundError, code="context_not_found", status=404):
    """No such code context in this sandbox."""


class TemplateNotFoundError(NotFoundError, code="template_not_found", status=404):
    """No such template in the catalogue."""


class KeyNotFoundError(NotFoundError, code="key_not_found", status=404):
    """No API key with this prefix."""


class WorkspaceNotFoundError(NotFoundError, code="workspace_not_found", status=404):
    """No such workspace: never created, or deleted."""


class SnapshotNotFoundError(NotFoundError, code="snapshot_not_found", status=404):
    """No such snapshot: never taken, deleted, or past its expiry."""


class PathNotFoundError(NotFoundError, FileNotFoundError, code="path_not_found", status=404):
    """No such file or directory in the sandbox."""


class ConflictError(APIError, code="conflict", status=409):
    """The object exists but its state does not allow this."""


class SandboxNotRunningError(ConflictError, code="sandbox_not_running", status=409):
    """The sandbox exists but is still being created, is stopping, or has failed."""


class SnapshotUnusableError(ConflictError, code="snapshot_unusable", status=409):
    """A saved state can't be restored here: it is damaged, or another engine build, processor or Cellbox made it.

    `details["cause"]` says which: `damaged`, `foreign` or `template_gone`.
    """


class PathConflictError(ConflictError, OSError, code="path_conflict", status=409):
    """The path is there but of another kind: a directory where a file is needed, a non-empty directory, …"""


class TemplateExistsError(ConflictError, code="template_exists", status=409):
    """A template of this name exists already; pass `replace`."""


class WorkspaceExistsError(ConflictError, code="workspace_exists", status=409):
    """The caller has a workspace of this name already."""


class WorkspaceInUseError(ConflictError, code="workspace_in_use", status=409):
    """Sandboxes have the workspace mounted; `details["sandboxes"]` lists them. Kill them first."""


class TooLargeError(APIError, code="too_large", status=413):
    """A body or message exceeds its limit, which the message names."""


class QuotaExceededError(APIError, code="quota_exceeded", status=429):
    """The owner's quota is used up; `details` names quota, limit and use."""


class InternalError(APIError, code="internal_error", status=500):
    """A fault of the daemon. The log has more under the same `request_id`."""


class TemplateBuildError(APIError, code="template_build_failed", status=500):
    """A step of a template's build failed; the message names the step, `details["log_tail"]` shows why."""


class GuestError(APIError, code="guest_error", status=502):
    """The sandbox died or broke its protocol while it was asked something; `details["cause"]` says which."""


class EngineUnavailableError(APIError, code="engine_unavailable", status=503):
    """The isolation engine is missing or unfit on this host; run `cellbox doctor`. Nothing weaker is used instead."""


class CapacityError(APIError, code="no_capacity", status=503):
    """The host has no room for another sandbox now. Nothing was created; try again after `retry_after_seconds`."""


class StoreUnavailableError(APIError, code="store_unavailable", status=503):
    """The daemon's database can't be read or written now: locked, read-only, damaged or of a newer version.

    Running sandboxes go on. `StorageFullError` is raised instead when the disk is full.
    """


class StorageFullError(APIError, code="storage_full", status=507):
    """No space is left on the sandbox's disk, or on the host."""
