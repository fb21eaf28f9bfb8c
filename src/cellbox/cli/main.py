"""The entry point: which commands there are, and how every error ends.

Commands are named by import path, so that `cellbox ps` never pays for what `cellbox serve` imports.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from cyclopts import App, Group, Parameter

from cellbox._version import __version__
from cellbox.cli import exits
from cellbox.cli.terminal import debug_requested, escaped
from cellbox.errors import APIError, CellboxError

_ABOUT = """A computer of its own for every AI agent, behind a real isolation boundary, on your machine.

With CELLBOX_API_URL set, commands talk to that daemon; otherwise to a private one that is started on demand.
"""
COMMANDS: dict[Group, dict[str, tuple[str, str]]] = {
    Group("Work with sandboxes", sort_key=1): {
        "run": ("run:run", "Run Python code in a sandbox, with its charts saved."),
        "exec": ("commands:execute", "Run a command in a sandbox."),
        "create": ("sandboxes:create", "Create a sandbox and print its id."),
        "ps": ("sandboxes:list_all", "List your sandboxes."),
        "inspect": ("sandboxes:inspect", "Show everything about a sandbox."),
        "logs": ("sandboxes:logs", "Print a sandbox's log."),
        "journal": ("journal:journal", "Show what ran in a sandbox, or save it as a notebook."),
        "replay": ("replay:replay", "Run a notebook again in a fresh sandbox and tell which outputs differ."),
        "chat": ("chat:chat", "Talk to a model that has a sandbox."),
        "mcp": ("mcp:mcp", "Serve the code tools to any MCP client."),
        "ls": ("listing:list_directory", "List a directory in a sandbox."),
        "cp": ("copy:copy", "Copy files into or out of a sandbox."),
        "fork": ("states:fork", "Make sandboxes that go on from another's present state."),
        "snapshot": ("snapshots:app", "Take, list and delete snapshots."),
        "pause": ("states:pause", "Stop sandboxes where they are."),
        "resume": ("states:resume", "Let paused sandboxes go on."),
        "hibernate": ("states:hibernate", "Put sandboxes on disk and free their memory."),
        "wake": ("states:wake", "Bring hibernated sandboxes back."),
        "kill": ("sandboxes:kill", "Kill sandboxes and remove everything of them."),
    },
    Group("Look after the host", sort_key=2): {
        "workspace": ("workspaces:app", "List, create, delete and copy workspaces."),
        "template": ("templates:app", "List, build and delete templates."),
        "pool": ("pool:app", "Show and set what is kept ready before anyone asks."),
        "key": ("keys:app", "Create, list and revoke API keys."),
        "serve": ("serve:serve", "Run the daemon."),
        "doctor": ("doctor:doctor", "Tell what this host can do, what is missing and how to fix it."),
        "setup": ("doctor:setup", "Fetch the isolation engine, then do as doctor does."),
        "version": ("about:version", "Print the version of this command and of the daemon."),
    },
}


def build_app(*, overview: bool = True) -> App:
    """The command tree. `overview` puts a summary beside each command, without importing any of them.

    A command's own help is its docstring, which such a summary would replace.
    """
    app = App(
        name="cellbox",
        help=_ABOUT,
        version=__version__,
        version_flags=["--version", "-V"],
        result_action="return_value",
        default_parameter=Parameter(negative=""),
    )
    for group, commands in COMMANDS.items():
        for order, (name, (path, summary)) in enumerate(commands.items()):
            texts = {"help": summary} if overview else {}
            app.command(f"cellbox.cli.{path}", name=name, group=group, sort_key=order, **texts)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    code = run(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _pipe_is_gone()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code, with every error told in one sentence."""
    try:
        has_command = any(argument in commands for argument in arguments[:1] for commands in COMMANDS.values())
        result: Any = build_app(overview=not has_command)(list(arguments))
    except CellboxError as error:
        if debug_requested():
            raise
        return _tell(error)
    except KeyboardInterrupt:
        return exits.Exit.INTERRUPTED
    except BrokenPipeError:
        return _pipe_is_gone()
    except OSError as error:
        if debug_requested():
            raise
        sys.stderr.write(f"cellbox: {escaped(str(error))}\n")
        return exits.Exit.FAILURE
    except Exception as error:
        if debug_requested():
            raise
        sys.stderr.write(
            f"cellbox: unexpected {type(error).__name__}: {escaped(str(error))}\n"
            "         This is a fault of Cellbox; run it again with CELLBOX_DEBUG=1 and report what it prints.\n"
        )
        return exits.Exit.FAILURE
    return int(result) if isinstance(result, int) else exits.Exit.OK


def _tell(error: CellboxError) -> int:
    code, advice = exits.meaning(error)
    sys.stderr.write(f"cellbox: {escaped(str(error))}\n")
    if advice:
        sys.stderr.write(f"         {advice}\n")
    if isinstance(error, APIError) and error.request_id and error.http_status >= 500:
        sys.stderr.write(f"         The daemon's log has more under request {escaped(error.request_id)}.\n")
    return code


def _pipe_is_gone() -> int:
    """The reader of our output left, as `head` does. Python must not complain about it again at exit."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    return exits.Exit.BROKEN_PIPE
