"""HTTP operations on the state of a sandbox as a whole: rest, snapshots, forks.

Part of `operations`, which exports all of it: import from there.
"""

from __future__ import annotations

from cellbox.protocol import snapshots
from cellbox.protocol.operation import Operation

NoneType = type(None)
_SANDBOX = "/sandboxes/{sandbox_id}"

pause_sandbox = Operation(
    name="pause_sandbox",
    method="POST",
    path=_SANDBOX + "/pause",
    summary="Stop a sandbox where it is; its memory stays, and its TTL stands still.",
    body=NoneType,
    result=NoneType,
    status=204,
)
resume_sandbox = Operation(
    name="resume_sandbox",
    method="POST",
    path=_SANDBOX + "/resume",
    summary="Let a paused sandbox go on.",
    body=NoneType,
    result=NoneType,
    status=204,
)
hibernate_sandbox = Operation(
    name="hibernate_sandbox",
    method="POST",
    path=_SANDBOX + "/hibernate",
    summary="Put a sandbox on disk and free its memory.",
    body=NoneType,
    result=snapshots.StatusInfo,
)
wake_sandbox = Operation(
    name="wake_sandbox",
    method="POST",
    path=_SANDBOX + "/wake",
    summary="Bring a hibernated sandbox back.",
    body=NoneType,
    result=snapshots.StatusInfo,
)
take_snapshot = Operation(
    name="take_snapshot",
    method="POST",
    path=_SANDBOX + "/snapshots",
    summary="Save a sandbox's memory, processes and disk; it goes on.",
    body=snapshots.TakeSnapshot,
    result=snapshots.SnapshotInfo,
    status=201,
)
list_snapshots = Operation(
    name="list_snapshots",
    method="GET",
    path="/snapshots",
    summary="List the caller's snapshots, newest first; those of one sandbox with `sandbox_id`.",
    body=NoneType,
    result=snapshots.SnapshotList,
    query=("sandbox_id",),
)
get_snapshot = Operation(
    name="get_snapshot",
    method="GET",
    path="/snapshots/{snapshot_id}",
    summary="Get one snapshot.",
    body=NoneType,
    result=snapshots.SnapshotInfo,
)
delete_snapshot = Operation(
    name="delete_snapshot",
    method="DELETE",
    path="/snapshots/{snapshot_id}",
    summary="Delete a snapshot; sandboxes made from it live on.",
    body=NoneType,
    result=NoneType,
    status=204,
)
fork_sandbox = Operation(
    name="fork_sandbox",
    method="POST",
    path=_SANDBOX + "/fork",
    summary="Make sandboxes that go on from this one's present memory and disk; it goes on too.",
    body=snapshots.ForkSandbox,
    result=snapshots.ForkResult,
    status=201,
)
fork_tree = Operation(
    name="fork_tree",
    method="POST",
    path=_SANDBOX + "/fork-tree",
    summary="Fork children to try things in, all or none; keep the best with `promote`.",
    body=snapshots.ForkTree,
    result=snapshots.ForkTreeResult,
    status=201,
)
promote_sandbox = Operation(
    name="promote_sandbox",
    method="POST",
    path=_SANDBOX + "/promote",
    summary="Make a child of a fork tree a sandbox in its own right.",
    body=snapshots.PromoteChild,
    result=snapshots.Promotion,
)
