"""deepagents: a sandbox as the backend of a deep agent. Needs `cellbox[deepagents]`."""

from __future__ import annotations

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from cellbox.client._sync._sandbox import Sandbox
from cellbox.errors import APIError, InvalidRequestError, PathConflictError, PathNotFoundError, PermissionDeniedError

_DEFAULT_SECONDS = 30 * 60


class CellboxSandbox(BaseSandbox):
    """The backend over one sandbox, which stays yours to kill.

    Args:
        sandbox: A sandbox whose template has Python 3; every template of Cellbox's own has.
        timeout_seconds: For commands that name no limit of their own.
    """

    enable_capture_offload = True

    def __init__(self, sandbox: Sandbox, *, timeout_seconds: float = _DEFAULT_SECONDS) -> None:
        self._sandbox = sandbox
        self._timeout_seconds = timeout_seconds

    @property
    def id(self) -> str:
        return self._sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        limit = float(timeout or self._timeout_seconds)
        # One stream, so that output and errors come in the order in which they were printed.
        result = self._sandbox.exec(f"exec 2>&1\n{command}", timeout_seconds=limit)
        output = result.stdout + result.stderr
        if result.reason != "exited":
            output += f"\n[the command was stopped: {result.reason}, limit {limit:g} s]"
        return ExecuteResponse(output=output, exit_code=result.exit_code, truncated=result.stdout_dropped_bytes > 0)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path=path, error=self._upload(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def _upload(self, path: str, content: bytes) -> str | None:
        try:
            self._sandbox.filesystem.write(path, content)
        except APIError as error:
            return _code(error)
        return None

    def _download(self, path: str) -> FileDownloadResponse:
        try:
            return FileDownloadResponse(path=path, content=self._sandbox.filesystem.read(path))
        except APIError as error:
            return FileDownloadResponse(path=path, error=_code(error))


def _code(error: APIError) -> str:
    """The protocol's name for what is wrong with a path; a fault of the platform is raised."""
    if isinstance(error, PathNotFoundError):
        return "file_not_found"
    if isinstance(error, PathConflictError):
        return "is_directory" if "directory" in error.message else error.message
    if isinstance(error, PermissionDeniedError):
        return "permission_denied"
    if isinstance(error, InvalidRequestError):
        return "invalid_path"
    raise error
