"""What the operating system says about a path, as the failure codes of the wire."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager

from cellbox.guest.channel import Refusal

_CODES = {
    errno.ENOENT: "path_not_found",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.EROFS: "permission_denied",
    errno.ENOSPC: "storage_full",
    errno.EDQUOT: "storage_full",
    errno.ENOMEM: "storage_full",
    errno.EISDIR: "path_conflict",
    errno.ENOTDIR: "path_conflict",
    errno.ENOTEMPTY: "path_conflict",
    errno.EEXIST: "path_conflict",
    errno.ELOOP: "path_conflict",
    errno.EBUSY: "path_conflict",
    errno.ETXTBSY: "path_conflict",
    errno.ENXIO: "path_conflict",
    errno.ENAMETOOLONG: "invalid_request",
    errno.EINVAL: "invalid_request",
}
_MAX_PATH_BYTES = 4095


@contextmanager
def refusing(path: str) -> Generator[None]:
    """Turn an `OSError` inside into a `Refusal` that names `path`."""
    try:
        yield
    except ConnectionError:
        raise
    except OSError as error:
        code = _CODES.get(error.errno or 0, "internal")
        raise Refusal(code, f"{path}: {error.strerror or error}") from error


def check_path(path: str) -> str:
    """Return `path` if it can be one. Raises `Refusal`."""
    if not path.startswith("/"):
        raise Refusal("invalid_request", f"the path must be absolute: {path[:200]!r}")
    if "\0" in path:
        raise Refusal("invalid_request", f"a path can't contain a NUL character: {path[:200]!r}")
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise Refusal("invalid_request", f"the path is longer than {_MAX_PATH_BYTES} bytes: {path[:200]!r}…")
    return path
