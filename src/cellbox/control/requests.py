"""What a request for a sandbox amounts to: the machine to start, and what its guest is told."""

from __future__ import annotations

import math
import secrets
import uuid

from cellbox import errors
from cellbox.control.sandbox import check_metadata
from cellbox.control.workspaces import Hold
from cellbox.engines.base import MachineSpec
from cellbox.protocol.sandboxes import CreateSandbox
from cellbox.templates.catalogue import Template
from cellbox.templates.guest_program import guest_argv, machine_env
from cellbox.wire import messages

_MB_PER_TASK = 4  # a fork bomb of Python costs 3.2 to 3.4 MB of guest memory for each process
_MAX_TASKS = 512  # enough for parallel builds; a guest process costs the host about two tasks and 0.6 MB


def check_request(request: CreateSandbox) -> None:
    """Raise `InvalidRequestError` for what makes no sense whatever the template is."""
    check_metadata(request.metadata)
    if request.on_timeout == "hibernate" and (request.workspace or request.volumes):
        raise errors.InvalidRequestError("a sandbox with mounts can't be hibernated: leave `on_timeout` out")
    for name in request.env:
        if not name or "=" in name or "\0" in name or "\0" in request.env[name]:
            raise errors.InvalidRequestError(f"{name[:64]!r} can't be the name of an environment variable")


def machine_spec(request: CreateSandbox, template: Template) -> MachineSpec:
    """Return the machine that a request and its template amount to, under a new id."""
    memory_mb = request.memory_mb or template.memory_mb
    disk_mb = request.disk_mb or (round(request.disk_gb * 1024) if request.disk_gb else template.disk_mb)
    return MachineSpec(
        machine_id=str(uuid.uuid4()),
        rootfs=template.rootfs,
        argv=guest_argv(),
        env=machine_env(template.env),
        memory_mb=memory_mb,
        disk_mb=disk_mb,
        cpu=request.cpu or template.cpu,
        tasks=min(memory_mb // _MB_PER_TASK, _MAX_TASKS),
    )


def configuration(
    request: CreateSandbox, template: Template, spec: MachineSpec, hold: Hold | None = None
) -> messages.Configure:
    """Return what turns a waiting guest into the requested sandbox."""
    files_root = hold.files_root if hold is not None else ""
    return messages.Configure(
        hostname=_hostname(spec.machine_id),
        memory_mb=spec.memory_mb,
        disk_mb=spec.disk_mb,
        tasks=spec.tasks,
        cpus=math.ceil(spec.cpu),
        entropy=secrets.token_hex(32),
        env={**template.env, **request.env},
        start_command="" if files_root else template.start_command,
        attached=hold.attached if hold is not None else {},
        read_only=hold.read_only if hold is not None else [],
        files_root=files_root,
    )


def renewal(machine_id: str) -> messages.Renew:
    """Return what makes a restored guest a sandbox of its own."""
    return messages.Renew(hostname=_hostname(machine_id), entropy=secrets.token_hex(32))


def _hostname(machine_id: str) -> str:
    return f"sandbox-{machine_id[:8]}"
