"""`cellbox journal`: what ran in a sandbox, to read or to run again."""

from __future__ import annotations

from pathlib import Path

from cellbox import Client, Journal
from cellbox.cli.about import JsonFlag, RawFlag
from cellbox.cli.finding import open_sandbox
from cellbox.cli.output import print_json, say
from cellbox.cli.terminal import escaped, guest_output
from cellbox.errors import SandboxNotFoundError
from cellbox.protocol.journal import CellEntry, CommandEntry, JournalEntry


def journal(sandbox: str, /, *, save: Path | None = None, as_json: JsonFlag = False, raw: RawFlag = False) -> None:
    """Show every cell and command of a sandbox with what came of it, also after the sandbox's end.

    Args:
        sandbox: Its id, or for one that still runs the beginning of it.
        save: Write it to this file instead: a notebook where the name ends in `.ipynb`, else JSON.
    """
    with Client() as client:
        found = _find(client, sandbox)
    if save is not None:
        say(f"saved: {found.save(save)}")
    elif as_json:
        print_json(found.as_json())
    else:
        out, _ = guest_output(raw=raw)
        try:
            for entry in found:
                out.write(_told(entry))
        finally:
            out.close()
    if found.missing:
        say(f"{found.missing} entries are missing: the journal was full.")


def _find(client: Client, name: str) -> Journal:
    try:
        return open_sandbox(client, name).journal()
    except SandboxNotFoundError:
        return client.sandboxes.journal(name)


def _told(entry: JournalEntry) -> str:
    """One entry as text, as a notebook would print it."""
    at = f"{entry.started_at:%Y-%m-%d %H:%M:%S}"
    lines: list[str] = []
    if isinstance(entry, CellEntry):
        outcome = entry.execution
        ended = "not waited for" if outcome is None else f"{outcome.duration_ms:.0f} ms, {outcome.outcome}"
        lines += [f"[{entry.number}] {at} {entry.language} cell, {ended}", _indented(entry.code)]
        if outcome is not None:
            texts = [bundle.get("text/plain") or f"<{', '.join(bundle)}>" for bundle in outcome.results]
            lines += [outcome.stdout, *texts, outcome.stderr, outcome.error or ""]
    else:
        result = entry.result
        ended = "not waited for" if result is None else f"{result.duration_ms:.0f} ms, exit code {result.exit_code}"
        kind = "command" if isinstance(entry, CommandEntry) else f"command in shell {entry.shell_id}"
        lines += [f"[{entry.number}] {at} {kind}, {ended}", _indented(entry.cmd)]
        if isinstance(entry, CommandEntry):
            lines += [] if entry.result is None else [entry.result.stdout, entry.result.stderr]
        elif entry.result is not None:
            lines.append(entry.result.output)
    return "\n".join(line.rstrip("\n") for line in lines if line) + "\n\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {escaped(line)}" for line in text.splitlines())
