"""Lets an ordinary user run the engine: as root of a user namespace, where `runsc` works without `--rootless`."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from cellbox.errors import EngineUnavailableError

_CLONE_NEWUSER = 0x10000000


def enter_user_namespace() -> bool:
    """Move this process into a user namespace in which it is root; returns whether it moved.

    Does nothing for root. Call it before the process has a second thread (the kernel demands that) and before it
    opens files by the user's own rights: afterwards only the user's own files look owned.

    Raises:
        EngineUnavailableError: the host does not let users make namespaces; the message says what to change.
    """
    if os.geteuid() == 0:
        return False
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise EngineUnavailableError(
            f"an ordinary user can't run the gVisor engine here: making a user namespace failed ({reason}); run the "
            "daemon as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
            "user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0)"
        )
    own = Path("/proc/self")
    try:
        (own / "setgroups").write_text("deny")  # the kernel's condition for mapping a group without privileges
        (own / "uid_map").write_text(f"0 {uid} 1")
        (own / "gid_map").write_text(f"0 {gid} 1")
    except OSError as error:
        raise EngineUnavailableError(
            f"mapping uid {uid} in a user namespace failed ({error.strerror}); run the daemon as root"
        ) from error
    return True


def describe_user() -> str:
    """Return who this process is to the host, for people."""
    first, outside, _ = Path("/proc/self/uid_map").read_text().split()[:3]
    if os.geteuid() != 0:
        return f"uid {os.geteuid()}"
    return "root" if (first, outside) == ("0", "0") else f"uid {outside}, as root of a user namespace"
