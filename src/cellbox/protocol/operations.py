"""Every HTTP operation, declared once: the server binds handlers to these, the clients call them.

The wire is a superset of PandaStack's sandbox core, so that its published client works unchanged; the fields beyond it
are ours. Paths are below `/v1`.
"""

from __future__ import annotations

from typing import Any

from cellbox.protocol import (
    account,
    commands,
    contexts,
    journal,
    pool,
    sandboxes,
    shells,
    templates,
    workspaces,
)
from cellbox.protocol.file_operations import SANDBOX_FILES as SANDBOX_FILES  # all of that module is this one's too
from cellbox.protocol.file_operations import WORKSPACE_FILES as WORKSPACE_FILES
from cellbox.protocol.operation import Operation as Operation
from cellbox.protocol.state_operations import delete_snapshot as delete_snapshot
from cellbox.protocol.state_operations import fork_sandbox as fork_sandbox
from cellbox.protocol.state_operations import fork_tree as fork_tree
from cellbox.protocol.state_operations import get_snapshot as get_snapshot
from cellbox.protocol.state_operations import hibernate_sandbox as hibernate_sandbox
from cellbox.protocol.state_operations import list_snapshots as list_snapshots
from cellbox.protocol.state_operations import pause_sandbox as pause_sandbox
from cellbox.protocol.state_operations import promote_sandbox as promote_sandbox
from cellbox.protocol.state_operations import resume_sandbox as resume_sandbox
from cellbox.protocol.state_operations import take_snapshot as take_snapshot
from cellbox.protocol.state_operations import wake_sandbox as wake_sandbox

NoneType = type(None)
_SANDBOX = "/sandboxes/{sandbox_id}"
_CONTEXT = "/sandboxes/{sandbox_id}/repl/sessions/{context_id}"

create_sandbox = Operation(
    name="create_sandbox",
    method="POST",
    path="/sandboxes",
    summary="Create a sandbox and wait until it can run code.",
    body=sandboxes.CreateSandbox,
    result=sandboxes.SandboxInfo,
    status=201,
)
list_sandboxes = Operation(
    name="list_sandboxes",
    method="GET",
    path="/sandboxes",
    summary="List the caller's sandboxes, newest first.",
    body=NoneType,
    result=list[sandboxes.SandboxInfo],
)
get_sandbox = Operation(
    name="get_sandbox",
    method="GET",
    path=_SANDBOX,
    summary="Get one sandbox.",
    body=NoneType,
    result=sandboxes.SandboxInfo,
)
kill_sandbox = Operation(
    name="kill_sandbox",
    method="DELETE",
    path=_SANDBOX,
    summary="Kill a sandbox and remove everything of it.",
    body=NoneType,
    result=NoneType,
    status=204,
)
get_lifecycle = Operation(
    name="get_lifecycle",
    method="GET",
    path=_SANDBOX + "/lifecycle",
    summary="Get how long a sandbox has to live.",
    body=NoneType,
    result=sandboxes.Lifecycle,
)
update_lifecycle = Operation(
    name="update_lifecycle",
    method="PATCH",
    path=_SANDBOX + "/lifecycle",
    summary="Change TTL or persistence.",
    body=sandboxes.UpdateLifecycle,
    result=sandboxes.Lifecycle,
)
update_metadata = Operation(
    name="update_metadata",
    method="POST",
    path=_SANDBOX + "/metadata",
    summary="Replace a sandbox's metadata.",
    body=sandboxes.UpdateMetadata,
    result=sandboxes.SandboxInfo,
)
get_usage = Operation(
    name="get_usage",
    method="GET",
    path=_SANDBOX + "/metrics",
    summary="Measure what a sandbox uses.",
    body=NoneType,
    result=sandboxes.SandboxUsage,
)
get_logs = Operation(
    name="get_logs",
    method="GET",
    path=_SANDBOX + "/logs",
    summary="Read a sandbox's log: what its start command printed and what the platform has to say.",
    body=NoneType,
    result=str,
    query=("stream", "follow", "tail"),
    events=account.LogLine,
)
read_journal = Operation(
    name="read_journal",
    method="GET",
    path=_SANDBOX + "/journal",
    summary="Read what was run in a sandbox and what came of it, also after the sandbox's end.",
    body=NoneType,
    result=journal.Journal,
    query=("after", "limit"),
)
run_command = Operation(
    name="run_command",
    method="POST",
    path=_SANDBOX + "/exec",
    summary="Run a command and wait for it.",
    body=commands.RunCommand,
    result=commands.CommandResult,
)
stream_command = Operation(
    name="stream_command",
    method="POST",
    path=_SANDBOX + "/exec/stream",
    summary="Run a command and stream its output.",
    body=commands.RunCommand,
    result=NoneType,
    events=commands.CommandEvent,
)
_SHELL = _SANDBOX + "/shells/{shell_id}"
create_shell = Operation(
    name="create_shell",
    method="POST",
    path=_SANDBOX + "/shells",
    summary="Start a shell that keeps its state between commands.",
    body=shells.CreateShell,
    result=shells.ShellInfo,
    status=201,
)
list_shells = Operation(
    name="list_shells",
    method="GET",
    path=_SANDBOX + "/shells",
    summary="List a sandbox's shells.",
    body=NoneType,
    result=list[shells.ShellInfo],
)
get_shell = Operation(
    name="get_shell",
    method="GET",
    path=_SHELL,
    summary="Look at a shell.",
    body=NoneType,
    result=shells.ShellInfo,
)
close_shell = Operation(
    name="close_shell",
    method="DELETE",
    path=_SHELL,
    summary="End a shell and what its commands left running.",
    body=NoneType,
    result=NoneType,
    status=204,
)
run_in_shell = Operation(
    name="run_in_shell",
    method="POST",
    path=_SHELL + "/run",
    summary="Run a command in a shell and wait for it.",
    body=shells.RunInShell,
    result=shells.ShellResult,
)
stream_in_shell = Operation(
    name="stream_in_shell",
    method="POST",
    path=_SHELL + "/run/stream",
    summary="Run a command in a shell and stream what it prints.",
    body=shells.RunInShell,
    result=NoneType,
    events=shells.ShellEvent,
)
interrupt_shell = Operation(
    name="interrupt_shell",
    method="POST",
    path=_SHELL + "/interrupt",
    summary="Interrupt what a shell runs now.",
    body=NoneType,
    result=contexts.Interrupted,
)
run_commands = Operation(
    name="run_commands",
    method="GET",
    path=_SANDBOX + "/exec/ws",
    summary="Run commands side by side over one WebSocket, each under an id of the caller's.",
    body=NoneType,
    result=NoneType,
    messages=commands.CommandMessage,
    events=commands.CommandOutput | commands.CommandEnd | commands.CommandProblem,
)
create_context = Operation(
    name="create_context",
    method="POST",
    path=_SANDBOX + "/repl/sessions",
    summary="Start a code context.",
    body=contexts.CreateContext,
    result=contexts.ContextInfo,
    status=201,
)
list_contexts = Operation(
    name="list_contexts",
    method="GET",
    path=_SANDBOX + "/repl/sessions",
    summary="List a sandbox's code contexts.",
    body=NoneType,
    result=list[contexts.ContextInfo],
)
close_context = Operation(
    name="close_context",
    method="DELETE",
    path=_CONTEXT,
    summary="End a code context.",
    body=NoneType,
    result=NoneType,
    status=204,
)
run_code = Operation(
    name="run_code",
    method="POST",
    path=_CONTEXT + "/run",
    summary="Run a cell and wait for it.",
    body=contexts.RunCode,
    result=contexts.Execution,
)
stream_code = Operation(
    name="stream_code",
    method="POST",
    path=_CONTEXT + "/run/stream",
    summary="Run a cell and stream what comes of it.",
    body=contexts.RunCode,
    result=NoneType,
    events=contexts.CellEvent,
)
interrupt_context = Operation(
    name="interrupt_context",
    method="POST",
    path=_CONTEXT + "/interrupt",
    summary="Interrupt what a code context runs now.",
    body=NoneType,
    result=contexts.Interrupted,
)
restart_context = Operation(
    name="restart_context",
    method="POST",
    path=_CONTEXT + "/restart",
    summary="Replace a context's kernel by a fresh one.",
    body=NoneType,
    result=contexts.ContextInfo,
)
list_languages = Operation(
    name="list_languages",
    method="GET",
    path=_SANDBOX + "/repl/languages",
    summary="List the languages that code contexts can have here.",
    body=NoneType,
    result=list[str],
)
run_once = Operation(
    name="run_once",
    method="POST",
    path=_SANDBOX + "/repl",
    summary="Run code in a fresh interpreter, without a context.",
    body=contexts.RunOnce,
    result=contexts.RunOnceResult,
)
list_templates = Operation(
    name="list_templates",
    method="GET",
    path="/templates",
    summary="List the catalogue.",
    body=NoneType,
    result=list[templates.TemplateInfo],
)
get_template = Operation(
    name="get_template",
    method="GET",
    path="/templates/{name}",
    summary="Get one template.",
    body=NoneType,
    result=templates.TemplateInfo,
)
delete_template = Operation(
    name="delete_template",
    method="DELETE",
    path="/templates/{name}",
    summary="Remove a template from the catalogue.",
    body=NoneType,
    result=NoneType,
    status=204,
    scope="admin",
)
build_template = Operation(
    name="build_template",
    method="POST",
    path="/templates/build",
    summary="Build a template from a recipe folder or a root filesystem, sent as multipart form data.",
    body=bytes,
    result=templates.TemplateBuild,
    status=202,
    scope="admin",
)
list_builds = Operation(
    name="list_builds",
    method="GET",
    path="/templates/builds",
    summary="List recent builds.",
    body=NoneType,
    result=list[templates.TemplateBuild],
    scope="admin",
)
get_build = Operation(
    name="get_build",
    method="GET",
    path="/templates/builds/{build_id}",
    summary="Get one build.",
    body=NoneType,
    result=templates.TemplateBuild,
    scope="admin",
)
get_build_logs = Operation(
    name="get_build_logs",
    method="GET",
    path="/templates/builds/{build_id}/logs",
    summary="Stream a build's log.",
    body=NoneType,
    result=NoneType,
    query=("follow",),
    scope="admin",
    events=templates.BuildEvent,
)
create_volume = Operation(
    name="create_volume",
    method="POST",
    path="/volumes",
    summary="Create a workspace.",
    body=workspaces.CreateWorkspace,
    result=workspaces.WorkspaceInfo,
    status=201,
)
list_volumes = Operation(
    name="list_volumes",
    method="GET",
    path="/volumes",
    summary="List the caller's workspaces, by name.",
    body=NoneType,
    result=list[workspaces.WorkspaceInfo],
)
get_volume = Operation(
    name="get_volume",
    method="GET",
    path="/volumes/{name}",
    summary="Get one workspace.",
    body=NoneType,
    result=workspaces.WorkspaceInfo,
)
delete_volume = Operation(
    name="delete_volume",
    method="DELETE",
    path="/volumes/{name}",
    summary="Delete a workspace and all that is in it; refused while a sandbox has it mounted.",
    body=NoneType,
    result=NoneType,
    status=204,
)
get_pool = Operation(
    name="get_pool",
    method="GET",
    path="/pool",
    summary="What is ready before anyone asks, and how it has served.",
    body=NoneType,
    result=pool.PoolStatus,
    scope="admin",
)
resize_pool = Operation(
    name="resize_pool",
    method="PUT",
    path="/pool",
    summary="Set how many sandboxes are kept ready, until the daemon restarts.",
    body=pool.ResizePool,
    result=pool.PoolStatus,
    scope="admin",
)
get_me = Operation(
    name="get_me",
    method="GET",
    path="/me",
    summary="Who the caller is.",
    body=NoneType,
    result=account.Me,
)
list_tokens = Operation(
    name="list_tokens",
    method="GET",
    path="/me/tokens",
    summary="List the caller's API keys; all keys for an admin.",
    body=NoneType,
    result=account.TokenList,
)
create_token = Operation(
    name="create_token",
    method="POST",
    path="/me/tokens",
    summary="Create an API key.",
    body=account.CreateToken,
    result=account.CreatedToken,
)
delete_token = Operation(
    name="delete_token",
    method="DELETE",
    path="/me/tokens/{prefix}",
    summary="Revoke an API key at once.",
    body=NoneType,
    result=NoneType,
    status=204,
)
get_capabilities = Operation(
    name="get_capabilities",
    method="GET",
    path="/capabilities",
    summary="What this host can really do.",
    body=NoneType,
    result=account.Capabilities,
)

_DECLARED: list[object] = [*vars().values(), *SANDBOX_FILES.all(), *WORKSPACE_FILES.all()]
OPERATIONS: dict[str, Operation[Any, Any]] = {
    operation.name: operation for operation in _DECLARED if isinstance(operation, Operation)
}
"""All of them, by name."""
