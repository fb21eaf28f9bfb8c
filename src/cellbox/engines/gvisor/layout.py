"""Where an installation keeps what belongs to its machines, and the names it gives them.

```
STATE/
  lock                     held by the one process that drives this installation
  bin/runsc                private copy of the binary, if it was downloaded
  probe.json               what was found about this host and binary
  r/                       `runsc --root`, with the sentries' sockets; elsewhere and short if this path is too long
  machines/ID/config.json  the bundle of a machine
  machines/ID -> SHELL     the machine runs in a shell that was made before it was asked for
  places/, mounts/, staging/  what is attached to machines; see `attachments.py`
```
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Final

from cellbox.engines.base import EngineFault
from cellbox.errors import EngineUnavailableError

_SOCKET_PATH_LIMIT = 107
"""Bytes of a unix socket's path. Where it does not fit, runsc takes an abstract name, which anyone may connect to."""
_LONGEST_ID = 40
_ID = re.compile(r"[0-9a-f][0-9a-f-]*")


class Layout:
    """Paths below the state directory of one installation."""

    def __init__(self, state: Path) -> None:
        self.state: Final = state.absolute()
        self.root: Final = self._short_root()
        """What runsc gets as `--root`."""

    @classmethod
    def make(cls, state: Path) -> Layout:
        """Make the directories, for this user alone. Raises `EngineUnavailableError` if that can't be."""
        layout = cls(state)
        try:
            for path in (layout.state, layout.machines, layout.root):
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = layout.root.lstat()
        except OSError as error:
            raise EngineUnavailableError(
                f"the engine can't keep its state in {error.filename}: {error.strerror}"
            ) from error
        # Outside of the state directory someone else could have made it first, and would own the sentries' sockets.
        if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
            raise EngineUnavailableError(f"{layout.root} must be a directory that only this user can enter; remove it")
        return layout

    def _short_root(self) -> Path:
        inside = self.state / "r"
        if len(os.fsencode(inside / f"runsc-{'x' * _LONGEST_ID}.sock")) <= _SOCKET_PATH_LIMIT:
            return inside
        places = ("/run", os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir())
        place = next((place for place in places if place and os.access(place, os.W_OK)), places[-1])
        return Path(place, self.cgroup_prefix)

    def discard_root(self) -> None:
        """Remove what lies outside of the state directory, if no machine is left in it."""
        if not self.root.is_relative_to(self.state):
            with contextlib.suppress(OSError):
                self.root.rmdir()

    @property
    def machines(self) -> Path:
        return self.state / "machines"

    @property
    def places(self) -> Path:
        return self.state / "places"

    @property
    def mounts(self) -> Path:
        return self.state / "mounts"

    @property
    def staging(self) -> Path:
        return self.state / "staging"

    @property
    def cgroup_prefix(self) -> str:
        """Names the installation's cgroups: the same after a restart, another one for another directory."""
        return f"cellbox-{hashlib.sha256(os.fsencode(self.state.resolve())).hexdigest()[:12]}"

    def bundle(self, machine_id: str) -> Path:
        return self.machines / machine_id

    def socket(self, machine_id: str) -> Path:
        return self.root / f"runsc-{machine_id}.sock"

    def state_file(self, machine_id: str) -> Path:
        return self.root / f"{machine_id}_sandbox:{machine_id}.state"

    def files(self, machine_id: str) -> list[Path]:
        """Every file that `runsc` keeps of a machine under its root."""
        state = self.state_file(machine_id)
        return [state, state.with_suffix(".lock"), self.socket(machine_id)]

    def machine_ids(self) -> set[str]:
        """Machines that left a file here."""
        found = {entry.name for entry in self.machines.iterdir() if not entry.is_symlink()}
        found.update(self.names())
        with contextlib.suppress(FileNotFoundError):
            found.update(entry.name for entry in self.places.iterdir())
        for entry in self.root.iterdir():
            if entry.name.startswith("runsc-") and entry.suffix == ".sock":
                found.add(entry.stem.removeprefix("runsc-"))
            elif "_sandbox:" in entry.name:
                found.add(entry.name.partition("_sandbox:")[0])
        return found

    def names(self) -> dict[str, str]:
        """Of machines that run in shells: name on the host → the machine's own."""
        links = [entry for entry in self.machines.iterdir() if entry.is_symlink()]
        return {link.readlink().name: link.name for link in links}


def is_machine_id(name: str) -> bool:
    """Can this be a machine's name? Nothing that is could reach outside of a directory it is put into."""
    return len(name) <= _LONGEST_ID and _ID.fullmatch(name) is not None


def check_machine_id(machine_id: str) -> None:
    if not is_machine_id(machine_id):
        raise EngineFault(
            f"machine ids are up to {_LONGEST_ID} characters in lower-case hex and dashes: {machine_id!r}"
        )
