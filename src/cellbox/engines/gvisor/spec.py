"""The OCI specification of a machine: generated from `MachineSpec` alone, the same for boot and restore.

Control over this file and over runsc's flags is outside what gVisor promises to withstand, so nothing a user sends is
ever merged into it: no annotations, no labels, no free mounts. Newer releases compare the specifications of a
checkpoint and its restore; that is why one function makes both.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from cellbox.engines.base import ATTACHMENTS, Bind, MachineSpec

SHAPE = 2
"""Counts changes of the layout below; part of the image key, because an image only fits the layout it was made with."""

HOSTNAME = "cellbox"

CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
    "CAP_SYS_CHROOT",
)
"""What the guest's PID 1 holds inside gVisor, none of it on the host.

SYS_ADMIN and SYS_CHROOT let it lay a writable overlay over the read-only root; it drops SYS_ADMIN before anything of
the user's runs. No MKNOD (device nodes), no SYS_PTRACE, no NET_RAW, no SYS_RESOURCE (would lift the task limit).
"""

_OPEN_FILES_SOFT = 1024
_OPEN_FILES_HARD = 65536

_OVERHEAD_BASE_MB = 32
_OVERHEAD_PER_TASK_MB = 0.6
"""Host memory a machine needs beyond the guest's own: sentry, gofer, stubs, page tables.

Measured in the cgroup (anonymous and kernel memory, release 20240729): idle 13 MB, after a DataFrame and a plot 15 MB,
with a hundred guest processes 70 MB, which is 0.57 MB for each. The base is twice what an idle one needs.
"""

_TASKS_PER_GUEST_TASK = 2
_ENGINE_TASKS = 256


def visible_cpus(spec: MachineSpec) -> int:
    """How many processors the guest sees."""
    return max(1, math.ceil(spec.cpu))


def memory_limit_bytes(spec: MachineSpec) -> int:
    """The host-side limit: the guest's memory and its disk (a tmpfs in guest memory), and the engine's own need."""
    overhead_mb = _OVERHEAD_BASE_MB + math.ceil(_OVERHEAD_PER_TASK_MB * spec.tasks)
    return (spec.memory_mb + spec.disk_mb + overhead_mb) << 20


def host_tasks(spec: MachineSpec) -> int:
    """The host-side limit of tasks.

    A guest process costs 1.5 to 2 host tasks, a guest thread none, and the sentry has some 20 threads of its own.
    Reaching this limit crashes the sentry; it is the backstop behind RLIMIT_NPROC, which the guest meets first.
    """
    return _TASKS_PER_GUEST_TASK * spec.tasks + _ENGINE_TASKS


def oci_spec(spec: MachineSpec, *, cgroups_path: str | None, place: Path | None) -> dict[str, Any]:
    """The `config.json` of a machine.

    `cgroups_path` names cgroups that exist already, with their limits set; `place` is where its attachments appear.
    """
    linux: dict[str, Any] = {
        "namespaces": [{"type": name} for name in ("pid", "network", "ipc", "uts", "mount")],
    }
    if cgroups_path is not None:
        linux["cgroupsPath"] = cgroups_path
    capabilities = list(CAPABILITIES)
    return {
        "ociVersion": "1.0.0",
        "hostname": HOSTNAME,
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": list(spec.argv),
            "env": [f"{name}={value}" for name, value in spec.env.items()],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "rlimits": [
                {"type": "RLIMIT_NPROC", "soft": spec.tasks, "hard": spec.tasks},
                {"type": "RLIMIT_NOFILE", "soft": _OPEN_FILES_SOFT, "hard": _OPEN_FILES_HARD},
                {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
            ],
        },
        "root": {"path": str(spec.rootfs), "readonly": not spec.writable_root},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro", "nosuid", "noexec", "nodev"]},
            # Sized: it is guest memory, and /dev/shm is for the guest to mount apart.
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["size=1m", "mode=755", "nosuid"]},
            *(_bind_mount(bind) for bind in spec.binds),
            *([_bind_mount(Bind(host_path=place, guest_path=ATTACHMENTS, read_only=False))] if place else []),
        ],
        "linux": linux,
    }


def _bind_mount(bind: Bind) -> dict[str, Any]:
    return {
        "destination": bind.guest_path,
        "type": "bind",
        "source": str(bind.host_path),
        "options": ["rbind", "ro" if bind.read_only else "rw", "nosuid", "nodev"],
    }
