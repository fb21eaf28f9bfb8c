"""A journal as a Jupyter notebook. No I/O."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any

from cellbox.protocol.commands import CommandResult
from cellbox.protocol.contexts import Execution, ResultInfo
from cellbox.protocol.journal import CommandEntry, JournalEntry, ShellEntry
from cellbox.protocol.shells import ShellResult

KERNEL_NAME = "cellbox"
"""The kernelspec that comes with `cellbox[jupyter]`: a kernel whose cells run in a fresh sandbox."""
_STDIN_END = "END_OF_STANDARD_INPUT"


def notebook_of(entries: Iterable[JournalEntry], *, sandbox_id: str, template: str, missing: int) -> dict[str, Any]:
    """The notebook document."""
    directories: dict[str, str] = {}
    cells = [_cell(entry, directories) for entry in entries]
    about = f"What ran in sandbox `{sandbox_id}`, made from the template `{template}`."
    if missing:
        about += f" {missing} entries are missing: the journal was full."
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": KERNEL_NAME, "display_name": "Python (Cellbox sandbox)", "language": "python"},
            "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
            "cellbox": {"sandbox_id": sandbox_id, "template": template, "missing": missing},
        },
        "cells": [{"cell_type": "markdown", "id": "about", "metadata": {}, "source": about}, *cells],
    }


def _cell(entry: JournalEntry, directories: dict[str, str]) -> dict[str, Any]:
    """One cell. `directories` is where each shell has been left so far."""
    facts: dict[str, Any] = {"number": entry.number, "started_at": entry.started_at.isoformat()}
    if entry.omitted_bytes:
        facts["omitted_bytes"] = entry.omitted_bytes
    if isinstance(entry, CommandEntry):
        facts |= {"kind": "command", "user": entry.user, "env_names": entry.env_names}
        outputs = [] if entry.result is None else _command_outputs(entry.result)
        return _code_cell(entry.number, _bash(entry), outputs, facts, None)
    if isinstance(entry, ShellEntry):
        facts |= {"kind": "shell", "shell_id": entry.shell_id}
        source = f"%%bash\ncd {shlex.quote(directories.get(entry.shell_id, '/workspace'))}\n{entry.cmd}"
        if entry.result is not None:
            directories[entry.shell_id] = entry.result.cwd
        return _code_cell(
            entry.number, source, [] if entry.result is None else _shell_outputs(entry.result), facts, None
        )
    facts |= {"kind": "cell", "context_id": entry.context_id, "language": entry.language}
    if entry.language != "python":
        return {"cell_type": "raw", "id": _id(entry.number), "metadata": {"cellbox": facts}, "source": entry.code}
    if entry.execution is None:
        return _code_cell(entry.number, entry.code, [], facts, None)
    count = entry.execution.execution_count
    return _code_cell(entry.number, entry.code, _cell_outputs(entry.execution), facts, count)


def _code_cell(
    number: int, source: str, outputs: list[dict[str, Any]], facts: dict[str, Any], count: int | None
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"cellbox": facts}
    if any(output["output_type"] == "error" for output in outputs):
        metadata["tags"] = ["raises-exception"]  # so that whoever runs the notebook again goes on after it
    return {
        "cell_type": "code",
        "id": _id(number),
        "metadata": metadata,
        "execution_count": count or None,
        "source": source,
        "outputs": outputs,
    }


def _id(number: int) -> str:
    return f"entry-{number}"


def _bash(entry: CommandEntry) -> str:
    command = f"cd {shlex.quote(entry.cwd or '/workspace')}\n{entry.cmd}"
    if entry.stdin is not None:
        command = f"{{\n{command}\n}} <<'{_STDIN_END}'\n{entry.stdin}\n{_STDIN_END}"
    return f"%%bash\n{command}"


def _cell_outputs(execution: Execution) -> list[dict[str, Any]]:
    outputs = _streams(execution.stdout, execution.stderr)
    for index, bundle in enumerate(execution.results):
        info = execution.result_info[index] if index < len(execution.result_info) else ResultInfo()
        data = {mime: _json_or_text(mime, content) for mime, content in bundle.items()}
        if not data:
            continue
        if info.is_main:
            count = execution.execution_count or None
            outputs.append({"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}})
        else:
            outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    if execution.error is not None:
        info = execution.error_info
        name = info.name if info is not None else ("TimeoutError" if execution.reason == "timeout" else "KernelError")
        value = info.value if info is not None else execution.error
        outputs.append(_error(name, value, execution.error))
    return outputs


def _command_outputs(result: CommandResult) -> list[dict[str, Any]]:
    return [*_streams(result.stdout, result.stderr), *_exit(result.exit_code, result.reason)]


def _shell_outputs(result: ShellResult) -> list[dict[str, Any]]:
    return [*_streams(result.output, ""), *_exit(result.exit_code, result.reason)]


def _exit(code: int, reason: str) -> list[dict[str, Any]]:
    value = f"the command ended with exit status {code} ({reason})"
    return [_error("CalledProcessError", value, value)] if code else []


def _streams(stdout: str, stderr: str) -> list[dict[str, Any]]:
    named = (("stdout", stdout), ("stderr", stderr))
    return [{"output_type": "stream", "name": name, "text": text} for name, text in named if text]


def _error(name: str, value: str, traceback: str) -> dict[str, Any]:
    return {"output_type": "error", "ename": name, "evalue": value, "traceback": traceback.splitlines()}


def _json_or_text(mime: str, content: str) -> Any:
    """JSON types are documents in a notebook, and text on our wire."""
    if mime == "application/json" or mime.endswith("+json"):
        try:
            return json.loads(content)
        except ValueError:
            return content
    return content
