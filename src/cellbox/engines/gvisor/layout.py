"""Where an installation keeps what belongs to its machines, and the names it gives them.

```
STATE/
  lock                     held by the one process that drives this installation
  bin/runsc                private copy of the binary, if it was downloaded
  probe.json               what was found about this host and binary
  r/                       `runsc --root`; short, because a unix socket's path has 107 bytes
  machines/ID/config.json  the bundle of a machine
```
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cellbox.engines.base import EngineFault
from cellbox.errors import EngineUnavailableError

_SOCKET_PATH_LIMIT = 107
_LONGEST_ID = 40
_ID = re.compile(r"[0-9a-f][0-9a-f-]*")


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below the state directory of one installation."""

    state: Path

    @classmethod
    def make(cls, state: Path) -> Layout:
        """Make the directories, for this user alone. Raises `EngineUnavailableError` if that can't work."""
        state = state.absolute()
        layout = cls(state)
        longest = len(os.fsencode(layout.socket("x" * _LONGEST_ID)))
        if longest > _SOCKET_PATH_LIMIT:
            raise EngineUnavailableError(
                f"the engine's directory {state} has too long a path for unix sockets; choose one that is at least "
                f"{longest - _SOCKET_PATH_LIMIT} bytes shorter"
            )
        try:
            for path in (state, layout.root, layout.machines):
                path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise EngineUnavailableError(f"the engine can't keep its state in {state}: {error.strerror}") from error
        return layout

    @property
    def root(self) -> Path:
        return self.state / "r"

    @property
    def machines(self) -> Path:
        return self.state / "machines"

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
        found = {entry.name for entry in self.machines.iterdir()}
        for entry in self.root.iterdir():
            if entry.name.startswith("runsc-") and entry.suffix == ".sock":
                found.add(entry.stem.removeprefix("runsc-"))
            elif "_sandbox:" in entry.name:
                found.add(entry.name.partition("_sandbox:")[0])
        return found


def check_machine_id(machine_id: str) -> None:
    """Refuse a name that could reach outside of the directories it is put into."""
    if not _ID.fullmatch(machine_id) or len(machine_id) > _LONGEST_ID:
        raise EngineFault(
            f"machine ids are up to {_LONGEST_ID} characters in lower-case hex and dashes: {machine_id!r}"
        )
