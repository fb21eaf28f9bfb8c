"""The guest as one file, and how it is started. Built from this installation's own `cellbox.wire` and `cellbox.guest`.

The file's name carries its digest. So a newer guest is put beside the older one in a template that sandboxes run from
right now, and a checkpoint always finds the program it was made with.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import cellbox.wire

CELLBOX_DIRECTORY: Final = "/.cellbox"
RUNTIME_DIRECTORY: Final = f"{CELLBOX_DIRECTORY}/runtime"

# The loader is named outright and given its library path, so nothing of the template's own libc is used: the same
# files run over musl. `--argv0` is what CPython derives its prefix from; `-I` keeps the template's PYTHON* variables
# and the working directory out, `-S` its site-packages.
INTERPRETER: Final = (
    f"{RUNTIME_DIRECTORY}/lib/ld.so",
    "--argv0", f"{RUNTIME_DIRECTORY}/bin/python3",
    "--library-path", f"{RUNTIME_DIRECTORY}/lib",
    f"{RUNTIME_DIRECTORY}/bin/python3",
    "-I", "-S", "-B", "-u",
)  # fmt: skip
"""The private interpreter, ready for a program's path or `-c`."""

GUEST_ENV: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
"""What every machine's environment starts from; a template's own `env` is laid over it."""

_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
_SUFFIXES = frozenset({".py", ".json", ".txt"})


@cache
def guest_program() -> bytes:
    """Return the zip archive: the same bytes for the same sources, on every machine.

    `cellbox` itself is empty in there, since the real one imports the SDK.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted([("cellbox/__init__.py", b""), *_sources()]):
            entry = zipfile.ZipInfo(name, _TIMESTAMP)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, compresslevel=6)
    return buffer.getvalue()


@cache
def guest_digest() -> str:
    return hashlib.sha256(guest_program()).hexdigest()


def guest_path() -> str:
    """Return where this installation's guest lies in a template that was made ready for it."""
    return f"{CELLBOX_DIRECTORY}/guest-{guest_digest()[:16]}.pyz"


def guest_argv() -> tuple[str, ...]:
    """Return the command line of PID 1."""
    return (*INTERPRETER, guest_path())


def machine_env(template_env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of PID 1 for a template."""
    return {**GUEST_ENV, **template_env}


def _sources() -> Iterator[tuple[str, bytes]]:
    package = Path(cellbox.wire.__file__).parent.parent
    for part in ("wire", "guest"):
        for path in (package / part).rglob("*"):
            if path.suffix in _SUFFIXES and "__pycache__" not in path.parts:
                yield path.relative_to(package.parent).as_posix(), path.read_bytes()
    yield "__main__.py", (package / "guest/__main__.py").read_bytes()
    yield "cellbox/_version.py", (package / "_version.py").read_bytes()
