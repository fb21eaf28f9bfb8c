"""Finds the Jupyter kernelspecs of the sandbox: every language but our own Python's comes from one.

Read by PID 1 from the user's root, where anything may lie in the place of a `kernel.json`: nothing is followed by
waiting, and nothing large is read.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_MAX_BYTES = 64 * 1024
_MAX_SPECS = 100
_SYSTEM_DIRECTORIES = ("/usr/local/share/jupyter", "/usr/share/jupyter")
_ALIASES = {"js": "javascript", "ts": "typescript", "sh": "bash", "shell": "bash"}


@dataclass(frozen=True, kw_only=True)
class Kernelspec:
    """One `kernel.json`, of the fields that mean something here."""

    name: str
    """Of its directory, lower case."""
    language: str
    """Lower case."""
    directory: str
    argv: list[str]
    env: dict[str, str]
    interrupt_mode: str
    """`signal` or `message`."""


def find(environment: Mapping[str, str]) -> list[Kernelspec]:
    """Return the kernelspecs, those that win first; Python's are left out, as our own kernel runs that."""
    found: dict[str, Kernelspec] = {}
    for directory in _directories(environment):
        for spec in _read_directory(f"{directory}/kernels"):
            if len(found) < _MAX_SPECS:
                found.setdefault(spec.name, spec)
    return [spec for spec in found.values() if spec.language != "python"]


def choose(specs: list[Kernelspec], language: str) -> Kernelspec | None:
    """Return the kernelspec that is meant: by its name first, then by its language, in any case of letters."""
    wanted = language.strip().lower()
    for name in (wanted, _ALIASES.get(wanted, wanted)):
        for spec in (*(spec for spec in specs if spec.name == name), *(s for s in specs if s.language == name)):
            return spec
    return None


def names(specs: list[Kernelspec]) -> list[str]:
    """Return what a language may be asked for as, to be shown: languages, and names that say more than one."""
    languages = {spec.language for spec in specs}
    return sorted(languages | {spec.name for spec in specs if choose(specs, spec.language) is not spec})


def _directories(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield Jupyter's data directories in its own order of precedence."""
    yield from filter(None, environment.get("JUPYTER_PATH", "").split(":"))
    home = environment.get("HOME") or "/root"
    yield environment.get("JUPYTER_DATA_DIR") or f"{home}/.local/share/jupyter"
    program = shutil.which("python3", path=environment.get("PATH"))
    if program:
        yield os.path.dirname(os.path.dirname(program)) + "/share/jupyter"
    yield from _SYSTEM_DIRECTORIES


def _read_directory(path: str) -> Iterator[Kernelspec]:
    try:
        entries = sorted(os.listdir(path))
    except OSError:
        return
    for name in entries[:_MAX_SPECS]:
        spec = _read(name, f"{path}/{name}")
        if spec is not None:
            yield spec


def _read(name: str, directory: str) -> Kernelspec | None:
    try:
        handle = os.open(f"{directory}/kernel.json", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        fields: Any = json.loads(os.read(handle, _MAX_BYTES))
        argv = [str(part) for part in fields["argv"]]
        return Kernelspec(
            name=name.lower(),
            language=str(fields.get("language") or name).lower(),
            directory=directory,
            argv=argv,
            env={str(key): str(value) for key, value in (fields.get("env") or {}).items()},
            interrupt_mode="message" if fields.get("interrupt_mode") == "message" else "signal",
        ) if argv else None  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    finally:
        os.close(handle)
