"""`cellbox create`, `ps`, `inspect`, `logs` and `kill`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from cellbox import Client, Sandbox
from cellbox.cli.about import Flag, JsonFlag, RawFlag, pairs
from cellbox.cli.exits import Exit, UsageError
from cellbox.cli.finding import open_sandbox
from cellbox.cli.output import age, print_fields, print_json, print_table, say, size, time_left
from cellbox.cli.terminal import guest_output
from cellbox.errors import CellboxError
from cellbox.protocol.sandboxes import DEFAULT_TEMPLATE, OnTimeout, SandboxStatus, SandboxUsage


def create(
    *,
    template: str = DEFAULT_TEMPLATE,
    from_snapshot: str | None = None,
    ttl: float | None = None,
    on_timeout: OnTimeout = "kill",
    persistent: Flag = False,
    metadata: list[str] | None = None,
    env: list[str] | None = None,
    cpu: float | None = None,
    memory: int | None = None,
    disk: int | None = None,
    workspace: str | None = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a sandbox, wait until it can run code, and print its id.

    Args:
        template: What it is made from.
        from_snapshot: Id of a snapshot to go on from; its template and sizes win.
        ttl: Seconds until it is removed. Default 3600.
        on_timeout: `hibernate` puts it on disk then, instead of removing it.
        persistent: Let it live until it is killed.
        metadata: NAME=VALUE to find it by; may be given several times.
        env: NAME=VALUE for everything in it; may be given several times.
        cpu: Cores. Default: the template's.
        memory: MiB. Default: the template's.
        disk: MiB of writable disk, kept in memory. Default: the template's.
        workspace: Name of the workspace to mount at /workspace, which outlives the sandbox. Created if need be.
    """
    with Client() as client:
        sandbox = client.sandboxes.create(
            template,
            from_snapshot=from_snapshot,
            ttl_seconds=ttl,
            on_timeout=on_timeout,
            persistent=persistent,
            metadata=pairs(metadata, "--metadata"),
            env=pairs(env, "--env"),
            cpu=cpu,
            memory_mb=memory,
            disk_mb=disk,
            workspace=workspace,
        )
    print_json(sandbox.info) if as_json else print(sandbox.id)


def list_all(
    *, quiet: Annotated[bool, Parameter(name=["-q", "--quiet"], show_default=False)] = False, as_json: JsonFlag = False
) -> None:
    """List your sandboxes, newest first.

    Args:
        quiet: Only ids, one a line.
    """
    with Client() as client:
        found = client.sandboxes.list()
    if as_json:
        print_json([sandbox.info for sandbox in found])
    elif quiet:
        for sandbox in found:
            print(sandbox.id)
    else:
        print_table(
            ("ID", "TEMPLATE", "STATUS", "AGE", "ENDS IN", "CPU", "MEMORY", "METADATA"), [_row(one) for one in found]
        )


def _row(sandbox: Sandbox) -> tuple[object, ...]:
    info = sandbox.info
    return (
        info.id,
        info.template,
        info.status,
        age(info.created_at),
        time_left(info.expires_at),
        f"{info.cpu:g}",
        f"{info.memory_mb} MiB",
        " ".join(f"{name}={value}" for name, value in info.metadata.items()),
    )


def inspect(sandbox: str, /, *, as_json: JsonFlag = False) -> None:
    """Show everything about a sandbox: what it is, what it uses, how long it has to live.

    Args:
        sandbox: Its id, or the beginning of it.
    """
    with Client() as client:
        machine = open_sandbox(client, sandbox)
        lifecycle = machine.lifecycle()
        is_running = machine.status == SandboxStatus.RUNNING  # looking at one that rests must not wake it up
        usage = machine.usage() if is_running else None
        contexts = [context.info for context in machine.contexts()] if is_running else []
    if as_json:
        print_json({**msgspec.to_builtins(machine.info), "usage": usage, "lifecycle": lifecycle, "contexts": contexts})
        return
    info = machine.info
    enforced = [name for name, is_on in info.enforced.items() if is_on]
    print_fields(
        [
            ("id", info.id),
            ("status", f"{info.status} {info.failure}".rstrip()),
            ("template", f"{info.template} {info.template_digest[:12]}".rstrip()),
            ("engine", info.engine),
            ("started", f"{info.created_at:%Y-%m-%d %H:%M:%S} UTC, {info.boot_mode} in {info.boot_ms:.0f} ms"),
            ("ends in", time_left(lifecycle.expires_at)),
            ("idle", f"{lifecycle.idle_seconds:.0f} s"),
            ("cpu", f"{info.cpu:g} cores" + (f", {usage.host_cpu_seconds:.1f} s used" if usage else "")),
            ("memory", f"{info.memory_mb} MiB" + (_memory(usage) if usage else "")),
            ("disk", f"{info.disk_mb} MiB"),
            ("network", info.network),
            ("enforced", ", ".join(enforced) or "nothing"),
            ("contexts", ", ".join(f"{one.id} ({one.language}, {one.cells} cells)" for one in contexts) or "none"),
            *[(f"metadata {name}", value) for name, value in info.metadata.items()],
        ]
    )


def _memory(usage: SandboxUsage) -> str:
    return f", {size(usage.host_rss_bytes)} used, {size(usage.host_peak_bytes)} at most"


def logs(
    sandbox: str,
    /,
    *,
    follow: Annotated[bool, Parameter(name=["-f", "--follow"], show_default=False)] = False,
    tail: int | None = None,
    raw: RawFlag = False,
) -> None:
    """Print a sandbox's log: what its start command printed and what the platform has to say about it.

    Args:
        sandbox: Its id, or the beginning of it.
        follow: Go on until the sandbox ends.
        tail: Begin with the last so many lines.
    """
    out, _ = guest_output(raw=raw)
    with Client() as client:
        machine = open_sandbox(client, sandbox)
        try:
            if follow:
                with machine.follow_logs(tail=tail) as lines:
                    for line in lines:
                        out.write(line.line + "\n")
            else:
                out.write(machine.logs(tail=tail))
        finally:
            out.close()


def kill(*sandboxes: str, everything: Annotated[bool, Parameter(name="--all", show_default=False)] = False) -> int:
    """Kill sandboxes and remove everything of them.

    Args:
        sandboxes: Ids, or the beginnings of them.
        everything: All of yours.
    """
    if bool(sandboxes) == everything:
        raise UsageError("Give either ids or --all.")
    code = Exit.OK
    with Client() as client:
        found = client.sandboxes.list() if everything else []
        for name in sandboxes:
            try:
                found.append(open_sandbox(client, name))
            except CellboxError as error:  # one that is gone must not keep the others alive
                from cellbox.cli.exits import meaning

                say(f"cellbox: {error}")
                code = meaning(error)[0]
        for sandbox in found:
            sandbox.kill()
            say(f"killed {sandbox.id}")
    return code
