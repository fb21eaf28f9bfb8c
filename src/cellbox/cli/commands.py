"""`cellbox exec`: a command in a sandbox, its streams and exit code those of this process."""

from __future__ import annotations

import os
import shlex
import stat
import sys
from typing import Annotated

from cyclopts import Parameter

from cellbox import Client
from cellbox.cli.about import RawFlag, pairs
from cellbox.cli.exits import Exit, UsageError
from cellbox.cli.finding import open_sandbox
from cellbox.cli.output import say
from cellbox.cli.terminal import guest_output
from cellbox.protocol.commands import CommandExited, StderrChunk, StdoutChunk


def execute(
    sandbox: str,
    /,
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    cwd: str | None = None,
    env: list[str] | None = None,
    user: str | None = None,
    timeout: float | None = None,
    no_stdin: Annotated[bool, Parameter(name="--no-stdin", show_default=False)] = False,
    raw: RawFlag = False,
) -> int:
    """Run a command in a sandbox: `cellbox exec ID -- ls -la`, or `cellbox exec ID -- 'ls | wc -l'` for shell text.

    Its output appears at once and its exit code is that of this command; 124 when its time was up. Standard input is
    passed on when it is a pipe or a file, and read to its end first.

    Args:
        sandbox: The sandbox's id, or the beginning of it.
        command: One word is shell text; several are a command and its arguments, passed exactly.
        cwd: Directory to run it in. Default `/workspace`.
        env: NAME=VALUE; may be given several times.
        user: Name or number of a user in the sandbox. Default root.
        timeout: Seconds that it may run. Default: 24 hours.
        no_stdin: Do not read standard input.
    """
    if not command:
        raise UsageError("Give a command after the sandbox's id: cellbox exec ID -- COMMAND.")
    text = command[0] if len(command) == 1 else shlex.join(command)
    given = None if no_stdin else _piped_input()
    out, err = guest_output(raw=raw)
    ended: CommandExited | None = None
    with Client() as client:
        machine = open_sandbox(client, sandbox)
        try:
            with machine.exec_stream(
                text, cwd=cwd, env=pairs(env, "--env"), user=user, timeout_seconds=timeout, stdin=given
            ) as events:
                for event in events:
                    if isinstance(event, StdoutChunk):
                        out.write(event.chunk)
                    elif isinstance(event, StderrChunk):
                        err.write(event.chunk)
                    else:
                        ended = event
        finally:
            out.close()
            err.close()
    assert ended is not None  # the stream ends with it or raises
    return _exit_code(ended)


def _exit_code(ended: CommandExited) -> int:
    if ended.reason in {"timeout", "idle_timeout"}:
        say("cellbox: the command's time was up; it was killed with everything it started.")
        return Exit.TIMEOUT
    if ended.reason == "out_of_memory":
        say("cellbox: the command was killed because the sandbox ran out of memory.")
    return ended.exit_code & 0xFF


def _piped_input() -> str | None:
    """What was piped in. A terminal is never read, nor is anything else that might never end by itself."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return None
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)):
        return None
    return sys.stdin.buffer.read().decode("utf-8", "surrogateescape") or None
