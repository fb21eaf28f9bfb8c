"""What a bridge must know of a language beyond the Jupyter protocol: variables of one cell, and its odd ways.

A language that is not listed works as its kernel does; only `env` of a single cell is refused there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from typing import Any

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Dialect:
    """How cells of a language are sent. This one: as they are."""

    setup = ""
    """Code to run silently once."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        """Of the context's own, for files that only kernel and bridge use."""

    def code(self, code: str, env: dict[str, str]) -> str:
        """Return what is sent for a cell. Raises `ValueError`."""
        if env:
            raise ValueError("variables for one cell can't be set in this language; give them to the context instead")
        return code

    def before(self, _env: dict[str, str]) -> str:
        """Return code to run silently before the cell; empty for none."""
        return ""

    def after(self, _env: dict[str, str]) -> str:
        """Return code to run silently after it."""
        return ""

    def ended(self) -> int | None:
        """Return the exit code when the cell ended the interpreter under the kernel, which then began anew."""
        return None

    def error(self, name: str, value: str, lines: list[str]) -> dict[str, Any]:
        """Return `exit` and the name, value and traceback of a failed cell."""
        text = "\n".join(lines) or ": ".join(filter(None, (name, value)))
        return {"exit": 1, "name": name, "value": value, "traceback": text}


class Bash(Dialect):
    """`bash_kernel`, which types a cell line by line into a terminal: tabs complete, `read` eats the next line.

    So it is told to source a file, with an empty standard input, as a script would be run, and what the shell keeps
    (variables, functions, directory) it keeps.
    """

    def code(self, code: str, env: dict[str, str]) -> str:
        script, exit_file = f"{self.directory}/cell", f"{self.directory}/exit"
        with open(script, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(code if code.endswith("\n") else code + "\n")
        bad = [name for name in env if not _VARIABLE.fullmatch(name)]
        if bad:
            raise ValueError(f"{bad[0]!r} can't be the name of a variable")
        variables = "".join(f"{name}={_quote(value)} " for name, value in env.items())
        # Before an interactive shell ends, it leaves its code where the bridge finds it.
        trap = f"trap 'printf %s $? > {exit_file}' EXIT"
        return f"{trap}; {variables}source {script} < /dev/null"

    def ended(self) -> int | None:
        path = f"{self.directory}/exit"
        try:
            with open(path) as file:
                code = file.read(16)
            os.unlink(path)
        except OSError:
            return None
        return int(code) if code.isdigit() else 1

    def error(self, name: str, value: str, lines: list[str]) -> dict[str, Any]:
        if not name and value.isdigit():
            text = f"the last command ended with exit code {value}"
            return {"exit": int(value), "name": "ExitCode", "value": value, "traceback": text}
        return super().error(name, value, lines)


class JavaScript(Dialect):
    """Deno, and whatever else has Node's `process.env`."""

    def code(self, code: str, _env: dict[str, str]) -> str:
        return code

    def before(self, env: dict[str, str]) -> str:
        if not env:
            return ""
        return (
            "globalThis[Symbol.for('cellbox.env')] = {};"
            f"for (const [k, v] of Object.entries({json.dumps(env)})) {{"
            " globalThis[Symbol.for('cellbox.env')][k] = process.env[k]; process.env[k] = v; }"
        )

    def after(self, env: dict[str, str]) -> str:
        if not env:
            return ""
        return (
            "for (const [k, v] of Object.entries(globalThis[Symbol.for('cellbox.env')] ?? {}))"
            " { if (v === undefined) delete process.env[k]; else process.env[k] = v; }"
        )

    def error(self, name: str, value: str, lines: list[str]) -> dict[str, Any]:
        if lines[:1] == ["Stack trace:"]:
            lines = lines[1:]
        if "\n" in name and name == value:  # Deno has the whole of a syntax error in both
            first = value.splitlines()[0]
            return {"exit": 1, "name": "SyntaxError", "value": first, "traceback": f"SyntaxError: {value}"}
        return super().error(name, value, lines)


def _quote(value: str) -> str:
    """Quote for a line that is typed into a terminal: a tab or a line's end would be a key."""
    if value.isprintable():
        return shlex.quote(value)
    plain = (f"\\x{ord(sign):02x}" if ord(sign) < 48 or ord(sign) in (92, 127) else sign for sign in value)
    return f"$'{''.join(plain)}'"


_DIALECTS: dict[str, type[Dialect]] = {"bash": Bash, "javascript": JavaScript, "typescript": JavaScript}


def dialect_for(language: str, directory: str) -> Dialect:
    return _DIALECTS.get(language, Dialect)(directory)
