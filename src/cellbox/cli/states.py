"""`cellbox fork`, `pause`, `resume`, `hibernate` and `wake`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter, validators

from cellbox import Client, Sandbox
from cellbox.cli.about import JsonFlag, pairs
from cellbox.cli.exits import Exit, UsageError, meaning
from cellbox.cli.finding import open_sandbox
from cellbox.cli.output import print_json, say
from cellbox.errors import CellboxError
from cellbox.protocol.snapshots import MAX_CHILDREN


def fork(
    sandbox: str,
    /,
    *,
    count: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=MAX_CHILDREN))] = 1,
    metadata: list[str] | None = None,
    ttl: float | None = None,
    as_json: JsonFlag = False,
) -> None:
    """Make sandboxes that go on from another's present memory and disk, and print their ids.

    Args:
        sandbox: The parent's id, or the beginning of it. It goes on too.
        count: How many, at most 16: all or none. Several are a tree, whose best one `promote` keeps.
        metadata: NAME=VALUE for the children; may be given several times.
        ttl: Seconds until they are removed. Default: as long as the parent was given.
    """
    labels = pairs(metadata, "--metadata")
    with Client() as client:
        parent = open_sandbox(client, sandbox)
        if count == 1:
            children = [parent.fork(metadata=labels, ttl_seconds=ttl)]
        else:
            children = parent.fork_tree(count, metadata=labels, ttl_seconds=ttl)
    if as_json:
        print_json([child.info for child in children])
        return
    for child in children:
        print(child.id)


def pause(*sandboxes: str) -> int:
    """Stop sandboxes where they are: no CPU is used, memory and files stay, the time to live stands still.

    Args:
        sandboxes: Ids, or the beginnings of them.
    """
    return _each(sandboxes, Sandbox.pause, "paused")


def resume(*sandboxes: str) -> int:
    """Let paused sandboxes go on.

    Args:
        sandboxes: Ids, or the beginnings of them.
    """
    return _each(sandboxes, Sandbox.resume, "resumed")


def hibernate(*sandboxes: str) -> int:
    """Put sandboxes on disk and free their memory; whatever is asked of one next wakes it up.

    Args:
        sandboxes: Ids, or the beginnings of them.
    """
    return _each(sandboxes, Sandbox.hibernate, "hibernated")


def wake(*sandboxes: str) -> int:
    """Bring hibernated sandboxes back.

    Args:
        sandboxes: Ids, or the beginnings of them.
    """
    return _each(sandboxes, Sandbox.wake, "woken")


def _each(names: tuple[str, ...], do: Callable[[Sandbox], None], done: str) -> int:
    """Do it to all of them; one that fails must not keep the others waiting."""
    if not names:
        raise UsageError("Give the ids of sandboxes.")
    code = Exit.OK
    with Client() as client:
        for name in names:
            try:
                sandbox = open_sandbox(client, name)
                do(sandbox)
            except CellboxError as error:
                say(f"cellbox: {error}")
                code = meaning(error)[0]
            else:
                say(f"{done} {sandbox.id}")
    return code
