"""Shows host directories to machines without a place for them in the specification: attached after `runsc create`.

Each machine has one directory, empty and read-only, that its gofer binds at `ATTACHMENTS`. The directory lies on a
shared mount, so what is mounted below it here appears in the gofer's namespace too. That is why a shell that was made
ahead serves machines with workspaces and machines without, one baked snapshot fits both, and a read-only attachment is
read-only for the sentry's own system calls: the flag is the host's.

```
STATE/places/ID/NAME   the mount points: plain directories
STATE/mounts           the same, bound read-only and shared
STATE/staging          where an attachment gets its flags, which do not propagate once it is seen
```
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from cellbox.engines import mounts
from cellbox.engines.base import Attachment
from cellbox.engines.gvisor.layout import Layout
from cellbox.errors import EngineUnavailableError


def prepare(layout: Layout) -> None:
    """Make the shared mount. Raises `EngineUnavailableError` when this process may not mount."""
    try:
        for path in (layout.places, layout.mounts, layout.staging):
            path.mkdir(exist_ok=True, mode=0o700)
        give_back(layout)
        mounts.bind(layout.places, layout.mounts, read_only=True)
        mounts.share(layout.mounts)
    except OSError as error:
        raise EngineUnavailableError(f"the engine can't mount in {layout.state}: {error}") from error


def give_back(layout: Layout) -> None:
    """Unmount everything that was attached, and the shared mount."""
    for place in (layout.mounts, layout.staging):
        for point in mounts.mounted_below(place):
            with contextlib.suppress(OSError):
                mounts.unmount(point)


def make_place(layout: Layout, host_id: str) -> Path:
    """Make a machine's directory and return it as the gofer is to bind it. Raises `OSError`."""
    (layout.places / host_id).mkdir(mode=0o755)
    return layout.mounts / host_id


def attach(layout: Layout, host_id: str, attachments: Iterable[Attachment]) -> None:
    """Show directories to a machine that was created. Raises `OSError`; what was attached is left for `remove`."""
    for attachment in attachments:
        (layout.places / host_id / attachment.name).mkdir()
        staged = layout.staging / f"{host_id}.{attachment.name}"
        staged.mkdir(mode=0o700)
        try:
            mounts.bind(attachment.source, staged, read_only=attachment.read_only)
            try:
                mounts.clone(staged, layout.mounts / host_id / attachment.name)
            finally:
                mounts.unmount(staged)
        finally:
            staged.rmdir()


def remove(layout: Layout, host_id: str) -> None:
    """Take away all that a machine was shown. Its directory goes only when nothing is mounted in it any more."""
    for point in mounts.mounted_below(layout.mounts / host_id):
        with contextlib.suppress(OSError):
            mounts.unmount(point)
    place = layout.places / host_id
    # Never a recursive removal: below a mount that is still there would lie what users keep.
    with contextlib.suppress(OSError):
        for entry in list(place.iterdir()):
            entry.rmdir()
        place.rmdir()
