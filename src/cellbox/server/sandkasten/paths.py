"""What may be named as a file of a session or a workspace. The check is of the text: links are the guest's affair."""

from __future__ import annotations

import posixpath

from cellbox.errors import InvalidRequestError

ROOT = "/workspace"


def session_path(path: str) -> str:
    """A file below `/workspace`, given relative to it or absolutely."""
    if not path:
        raise InvalidRequestError("path is required")
    full = posixpath.normpath(posixpath.join(ROOT, path))
    if full == ROOT:
        raise InvalidRequestError("path must point to a file under /workspace")
    if not full.startswith(f"{ROOT}/"):
        raise InvalidRequestError("path must be under /workspace")
    return full


def session_directory(path: str) -> str:
    """A directory: `/workspace` itself or one below it."""
    full = posixpath.normpath(posixpath.join(ROOT, path))
    return full if full == ROOT else session_path(full)


def workspace_path(path: str) -> str:
    """A path in a workspace whose top is `/`: absolute ones are taken as relative, and none leads above it."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def file_name(name: str) -> str:
    """The name under which an uploaded file is kept. A directory in front of it is dropped, as browsers send one."""
    base = name.replace("\\", "/").rpartition("/")[2]
    if base in ("", ".", "..") or "\0" in base:
        raise InvalidRequestError(f"invalid filename: {name[:200]}")
    return base
