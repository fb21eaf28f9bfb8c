"""`cellbox replay`: does a notebook still come out as it says?"""

from __future__ import annotations

from pathlib import Path

from cellbox import Client
from cellbox.cli.about import JsonFlag
from cellbox.cli.exits import Exit, UsageError
from cellbox.cli.finding import open_sandbox
from cellbox.cli.output import print_json, say
from cellbox.cli.run import upload_pairs
from cellbox.cli.terminal import escaped
from cellbox.integrations.replay import Difference, NotebookError, read_notebook
from cellbox.integrations.replay import replay as replay_notebook
from cellbox.protocol.sandboxes import DEFAULT_TEMPLATE


def replay(
    notebook: Path,
    /,
    *,
    template: str | None = None,
    sandbox: str | None = None,
    file: list[str] | None = None,
    timeout: float = 300,
    as_json: JsonFlag = False,
) -> int:
    """Run a notebook again in a fresh sandbox and tell which outputs differ. Exit code 0 when none does, else 1.

    Args:
        notebook: A notebook file, such as `cellbox journal ID --save run.ipynb` writes.
        template: What the sandbox is made from. By default what the notebook names.
        sandbox: Run in this sandbox, in a fresh context, instead.
        file: LOCAL:/REMOTE, a file to copy into the sandbox first; may be given several times.
        timeout: Seconds that each cell may run.
    """
    try:
        document = read_notebook(notebook)
    except NotebookError as error:
        raise UsageError(f"{error}.") from error
    wanted = template or document.get("metadata", {}).get("cellbox", {}).get("template")
    uploads = upload_pairs(file)
    with Client() as client:
        if sandbox is not None:
            machine = open_sandbox(client, sandbox)
        else:
            machine = client.sandboxes.create(str(wanted or DEFAULT_TEMPLATE), ttl_seconds=24 * 3600)
        try:
            for local, remote in uploads:
                machine.filesystem.upload(local, remote)
            found = replay_notebook(document, machine, timeout_seconds=timeout)
        finally:
            if sandbox is None:
                machine.kill()
    if as_json:
        print_json({"cells": found.cells, "same": found.is_same, "differences": found.differences})
    else:
        for difference in found.differences:
            _tell(difference)
        count = len({difference.cell for difference in found.differences})
        say(f"{found.cells} cells, {count} with other outputs than recorded")
    return Exit.OK if found.is_same else Exit.FAILURE


def _tell(difference: Difference) -> None:
    print(f"cell {difference.cell}: {difference.output} differs")
    for sign, text in (("-", difference.recorded), ("+", difference.replayed)):
        for line in text.splitlines() or ["(nothing)"]:
            print(f"  {sign} {escaped(line)}")
