"""`cellbox run`: Python code in a sandbox, with its output live and its charts on disk."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cellbox import Client, Execution, Result, Sandbox
from cellbox.cli.about import Dashable, Flag, JsonFlag, RawFlag, pairs
from cellbox.cli.exits import Exit, UsageError
from cellbox.cli.finding import open_sandbox
from cellbox.cli.output import print_json, say
from cellbox.cli.terminal import GuestStream, guest_output
from cellbox.protocol.sandboxes import DEFAULT_TEMPLATE


@dataclass
class _Shown:
    """Puts a cell's results where the user can see them: images into files, the rest on standard output."""

    directory: Path
    stem: str
    out: GuestStream | None
    charts: list[str] = field(default_factory=list[str])

    def show(self, result: Result) -> None:
        suffix = ".png" if result.png else ".svg" if result.svg else ".jpg" if result.jpeg else ""
        if suffix:
            self.directory.mkdir(parents=True, exist_ok=True)
            path = result.save(self.directory / f"{self.stem}-{len(self.charts) + 1}{suffix}")
            self.charts.append(str(path))
            say(f"chart: {path}")
        elif self.out is not None and (text := result.text or result.markdown):
            self.out.write(text if text.endswith("\n") else text + "\n")


def run(
    file: Dashable | None = None,
    /,
    *,
    code: Annotated[str | None, Parameter(name=["-c", "--code"])] = None,
    template: str = DEFAULT_TEMPLATE,
    sandbox: str | None = None,
    keep: Flag = False,
    timeout: float = 300,
    upload: Annotated[list[str] | None, Parameter(name="--file")] = None,
    env: list[str] | None = None,
    save_charts: Path = Path(),
    as_json: JsonFlag = False,
    raw: RawFlag = False,
) -> int:
    """Run Python code in a sandbox: a fresh one that is killed afterwards, unless told otherwise.

    What it prints appears at once, and so does the value of its last expression; charts are saved as images. Exit code
    0, or 1 with the traceback on standard error, or what it passed to `sys.exit`, or 124 when its time was up.

    Args:
        file: A Python file, or `-` for standard input.
        code: Code on the command line instead of a file.
        template: What the sandbox is made from.
        sandbox: Run in this sandbox, which is not killed.
        keep: Do not kill the sandbox; its id is told.
        timeout: Seconds that the code may run.
        upload: LOCAL:REMOTE, a file to copy into the sandbox first; may be given several times.
        env: NAME=VALUE for the code; may be given several times.
        save_charts: Directory for charts.
    """
    source, stem = _source(file, code)
    uploads = upload_pairs(upload)
    variables = pairs(env, "--env")
    with Client() as client:
        if sandbox is not None:
            machine, is_ours = open_sandbox(client, sandbox), False
        else:
            machine, is_ours = client.sandboxes.create(template, ttl_seconds=timeout + 3600), not keep
        try:
            for local, remote in uploads:
                machine.filesystem.upload(local, remote)
            execution, shown = _run(machine, source, stem, variables, timeout, save_charts, as_json=as_json, raw=raw)
        finally:
            if is_ours:
                machine.kill()
    if keep and sandbox is None:
        say(f"sandbox: {machine.id}")
    if as_json:
        print_json(_document(execution, shown, machine))
    return _exit_code(execution)


def _run(
    sandbox: Sandbox,
    source: str,
    stem: str,
    env: dict[str, str],
    timeout: float,
    directory: Path,
    *,
    as_json: bool,
    raw: bool,
) -> tuple[Execution, _Shown]:
    out, err = guest_output(raw=raw)
    shown = _Shown(directory, stem, None if as_json else out)
    with sandbox.create_code_context() as context:
        if as_json:
            execution = context.run_code(source, timeout_seconds=timeout, env=env)
            for result in execution.results:
                shown.show(result)
            return execution, shown
        try:
            execution = context.run_code(
                source,
                timeout_seconds=timeout,
                env=env,
                on_stdout=out.write,
                on_stderr=err.write,
                on_result=shown.show,
            )
        finally:
            out.close()
    if execution.error:
        err.write(execution.error.rstrip("\n") + "\n")
    err.close()
    if execution.hint:
        say(f"hint: {execution.hint}")
    return execution, shown


def _source(name: str | None, code: str | None) -> tuple[str, str]:
    if (name is None) == (code is None):
        raise UsageError("Give either a Python file (`-` for standard input) or -c CODE.")
    if code is not None:
        return code, "chart"
    assert name is not None
    if name == "-":
        return sys.stdin.read(), "chart"
    file = Path(name)
    try:
        return file.read_text("utf-8"), file.stem
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text.") from None
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}.") from None


def upload_pairs(values: list[str] | None) -> list[tuple[Path, str]]:
    """`--file` options, each checked."""
    return [_upload(value) for value in values or []]


def _upload(text: str) -> tuple[Path, str]:
    local, colon, remote = text.rpartition(":")
    if not colon or not local or not remote.startswith("/"):
        raise UsageError(f"--file takes LOCAL:/ABSOLUTE/REMOTE, not {text!r}.")
    if not Path(local).is_file():
        raise UsageError(f"{local} is no file.")
    return Path(local), remote


def _exit_code(execution: Execution) -> int:
    if execution.timed_out:
        return Exit.TIMEOUT
    if execution.outcome != "completed":
        return Exit.FAILURE
    return execution.exit & 0xFF if execution.exit else (Exit.FAILURE if execution.error else Exit.OK)


def _document(execution: Execution, shown: _Shown, sandbox: Sandbox) -> dict[str, object]:
    """What `--json` prints. Images are in the files that `charts` names, not here."""
    images = {"image/png", "image/jpeg", "image/svg+xml", "application/pdf"}
    return {
        "sandbox_id": sandbox.id,
        "stdout": execution.stdout,
        "stderr": execution.stderr,
        "text": execution.text,
        "results": [{kind: data for kind, data in one.data.items() if kind not in images} for one in execution.results],
        "charts": shown.charts,
        "error": execution.error,
        "exit": _exit_code(execution),
        "outcome": execution.outcome,
        "state_kept": execution.state_kept,
        "hint": execution.hint,
        "duration_ms": execution.duration_ms,
    }
