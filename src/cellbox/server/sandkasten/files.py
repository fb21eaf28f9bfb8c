"""Files of a session and of a workspace: read, write, upload."""

from __future__ import annotations

import base64
import binascii
import contextlib
import posixpath
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import IO, Any

from cellbox import errors
from cellbox.control.files import Files
from cellbox.protocol.operation import Operation
from cellbox.protocol.operations import NoneType
from cellbox.protocol.workspaces import CreateWorkspace
from cellbox.server.call import Call
from cellbox.server.multipart import form_boundary, read_form
from cellbox.server.routing import Handlers
from cellbox.server.sandkasten import paths, values
from cellbox.server.sandkasten.faults import render_error
from cellbox.server.sandkasten.sessions import SESSION, session_of

WORKSPACE = "/workspaces/{workspace_id}"
_CHUNK_BYTES = 256 * 1024
_FILE_FIELDS = ("file", "files")

handlers = Handlers(render_error)


@contextlib.asynccontextmanager
async def files_of(call: Call[Any], *, create: bool = False) -> AsyncGenerator[Files]:
    """The files of the session or workspace in the path; a workspace is created at the first write to it."""
    if "session_id" in call.parameters:
        session = session_of(call)
        yield session.files
        session.keep_alive()
        return
    control, owner, name = call.control, call.caller.owner, workspace_name(call)
    if create:
        with contextlib.suppress(errors.WorkspaceExistsError):
            await control.workspaces.create(owner, CreateWorkspace(name=name))
    async with control.workspace_files.use(owner, name) as files:
        yield files


def workspace_name(call: Call[Any]) -> str:
    return call.parameters["workspace_id"].removeprefix("sandkasten-ws-")


def _path_rule(call: Call[Any]) -> Callable[[str], str]:
    return paths.session_path if "session_id" in call.parameters else paths.workspace_path


def _operations(verb: str, method: Any, name: str, body: Any, result: Any, query: tuple[str, ...] = ()) -> list[Any]:
    """The same operation on a session and on a workspace."""
    return [
        Operation(
            name=f"sandkasten_{name}_{kind}_file",
            method=method,
            path=f"{path}/fs/{verb}",
            summary=f"{name.capitalize()} a file of a {kind}.",
            body=body,
            result=result,
            query=query,
        )
        for kind, path in (("session", SESSION), ("workspace", WORKSPACE))
    ]


_WRITES = _operations("write", "POST", "write", values.WriteFile, values.Ok)
_READS = _operations("read", "GET", "read", NoneType, values.FileContent, ("path", "max_bytes"))
_UPLOADS = _operations("upload", "POST", "upload", bytes, values.Uploaded)


@handlers.handles(_WRITES[0])
@handlers.handles(_WRITES[1])
async def write_file(call: Call[values.WriteFile]) -> values.Ok:
    if not call.body.path:
        raise errors.InvalidRequestError("path is required")
    path, content = _path_rule(call)(call.body.path), _content(call.body)
    async with files_of(call, create=True) as files:
        await files.write(path, _once(content))
    return values.Ok()


@handlers.handles(_READS[0])
@handlers.handles(_READS[1])
async def read_file(call: Call[None]) -> values.FileContent:
    asked = call.query.get("path", "")
    if not asked:
        raise errors.InvalidRequestError("path query parameter is required")
    limit = _max_bytes(call.query.get("max_bytes", ""))
    content = bytearray()
    async with files_of(call) as files, files.read(_path_rule(call)(asked), 0, limit + 1) as reading:
        async for chunk in reading:
            content += chunk
    truncated = len(content) > limit
    del content[limit:]
    return values.FileContent(path=asked, content_base64=base64.b64encode(content).decode(), truncated=truncated)


@handlers.handles(_UPLOADS[0])
@handlers.handles(_UPLOADS[1])
async def upload_files(call: Call[bytes]) -> values.Uploaded:
    """Files are spooled first: the directory they go to may stand after them in the form."""
    content_type = call.headers.get(b"content-type", b"")
    if not content_type.lower().startswith(b"multipart/form-data"):
        raise errors.InvalidRequestError("send the files as multipart/form-data", http_status=415)
    with contextlib.ExitStack() as spools:
        received: list[tuple[str, IO[bytes]]] = []

        def open_file(field: str, name: str) -> _Spool:
            if field not in _FILE_FIELDS:
                raise errors.InvalidRequestError(f"unexpected file field {field[:40]!r}: use 'file' or 'files'")
            if len(received) == values.MAX_UPLOAD_FILES:
                raise errors.InvalidRequestError("too many files", details={"max_files": values.MAX_UPLOAD_FILES})
            spool = spools.enter_context(tempfile.SpooledTemporaryFile(_CHUNK_BYTES))
            received.append((paths.file_name(name), spool))
            return _Spool(spool)

        chunks = call.chunks(values.MAX_UPLOAD_BYTES)
        fields = await read_form(chunks, form_boundary(content_type), open_file)
        if not received:
            raise errors.InvalidRequestError("no file provided: use form field 'file' or 'files'")
        return await _store(call, fields.get("path", ""), received)


async def _store(call: Call[bytes], directory: str, received: list[tuple[str, IO[bytes]]]) -> values.Uploaded:
    is_session = "session_id" in call.parameters
    directory = paths.session_directory(directory) if is_session else paths.workspace_path(directory)
    stored: list[str] = []
    async with files_of(call, create=True) as files:
        for name, spool in received:
            path = posixpath.join(directory, name)
            await files.write(path, _pieces(spool))
            stored.append(path if is_session else path.lstrip("/"))
    return values.Uploaded(paths=stored)


class _Spool:
    """A file that stays open when the form is through with it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.write = file.write

    def close(self) -> None:
        pass


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    file.seek(0)
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _content(body: values.WriteFile) -> bytes:
    if body.text is None and body.content_base64 is None:
        raise errors.InvalidRequestError("either 'text' or 'content_base64' must be provided")
    if body.text and body.content_base64:
        raise errors.InvalidRequestError("provide either 'text' or 'content_base64', not both")
    if body.text:
        return body.text.encode(errors="surrogatepass")
    try:
        return base64.b64decode(body.content_base64 or "", validate=True)
    except binascii.Error as error:
        raise errors.InvalidRequestError(f"content_base64 is no base64: {error}") from None


def _max_bytes(text: str) -> int:
    try:
        wanted = int(text or "0")
    except ValueError:
        raise errors.InvalidRequestError(f"max_bytes must be a number, not {text[:40]!r}") from None
    if wanted < 0:
        raise errors.InvalidRequestError("max_bytes must be non-negative")
    if wanted > values.MAX_READ_BYTES:
        raise errors.InvalidRequestError(f"max_bytes must not exceed {values.MAX_READ_BYTES} (100MB)")
    return wanted or values.DEFAULT_READ_BYTES
