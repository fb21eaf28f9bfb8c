# ruff: noqa: E501, T201 - the tables read better unbroken
"""Write `http.md`, `errors.md` and `settings.md` from what they describe; `--check` only compares.

Field descriptions are the docstrings in `cellbox.protocol`, so a field is explained in one place.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from cellbox import errors
from cellbox.protocol import sandboxes
from cellbox.protocol.operations import OPERATIONS, Operation
from cellbox.protocol.values import RequestBody, Value

DOCS = Path(__file__).parent
NOTE = "<!-- Written by docs/generate_reference.py. Change the sources it names instead. -->\n"

GROUPS = {
    "Sandboxes": ("create_sandbox", "list_sandboxes", "get_sandbox", "kill_sandbox", "get_lifecycle", "update_lifecycle",
                  "update_metadata", "get_usage", "get_logs", "read_journal"),
    "Rest": ("pause_sandbox", "resume_sandbox", "hibernate_sandbox", "wake_sandbox"),
    "Snapshots and forks": ("take_snapshot", "list_snapshots", "get_snapshot", "delete_snapshot", "fork_sandbox",
                            "fork_tree", "promote_sandbox"),
    "Commands": ("run_command", "stream_command", "run_commands"),
    "Shells": ("create_shell", "list_shells", "get_shell", "close_shell", "run_in_shell", "stream_in_shell",
               "interrupt_shell"),
    "Code contexts": ("create_context", "list_contexts", "close_context", "run_code", "stream_code", "interrupt_context",
                      "restart_context", "list_languages", "run_once"),
    "Files": ("read_file", "write_file", "remove_file", "list_directory", "stat_file", "make_directory", "move_file",
              "set_file_mode", "watch_files", "pack_files", "unpack_files"),
    "Workspaces": ("create_volume", "list_volumes", "get_volume", "delete_volume", "read_workspace_file",
                   "write_workspace_file", "remove_workspace_file", "list_workspace_directory", "stat_workspace_file",
                   "make_workspace_directory", "move_workspace_file", "set_workspace_file_mode", "watch_workspace_files",
                   "pack_workspace_files", "unpack_workspace_files"),
    "Templates": ("list_templates", "get_template", "delete_template", "build_template", "list_builds", "get_build",
                  "get_build_logs"),
    "Pool": ("get_pool", "resize_pool"),
    "Account and host": ("get_me", "list_tokens", "create_token", "delete_token", "get_capabilities"),
}  # fmt: skip

HTTP_HEAD = """# HTTP reference

The wire is a superset of PandaStack's sandbox core: its published Python client works against Cellbox unchanged.
Fields beyond it are marked nowhere, since that client ignores what it does not know.

* **Address.** Everything here is below `/v1`. `GET /healthz`, `GET /version` and `GET /metrics` (Prometheus text) are
  at the root and need no key.
* **Key.** `Authorization: Bearer pds_…`.
* **Bodies** are JSON. An unknown field in a request is an error; an unknown field in an answer is to be ignored.
* **Errors** are `{"error": "<sentence>", "code": "<code>", "detail": …, "details": {…}, "request_id": "…"}`; see
  [errors](errors.md). What belongs to someone else answers 404, as if it did not exist.
* **Streams** are server-sent events whose `data` is ASCII JSON. The last event is named below; a stream that ends
  without it was cut. A comment line is sent while nothing happens.
* **WebSockets** begin with the same key, or with `?access_token=` where a browser can't send headers, and the same errors
  before the upgrade. JSON goes as text messages of at most 1 MiB. An error ends one with close code 4000 + its status and
  the reason `<code>: <sentence>`; the server pings every 20 s.
* **Retries.** A create answered with 503 or 429 *and* `Retry-After` created nothing. No other `POST` may be repeated
  without looking first.
"""

ERRORS_HEAD = """# Errors

An exception means that *the platform* could not do what was asked. A command that exits with 1 and a cell that raises
are **results**, not errors: look at `exit_code` and `error`. `exec(…, check=True)` and `Execution.raise_for_error()` turn
them into `CommandFailedError` and `CodeFailedError` where that reads better.

All errors are under `CellboxError` and live in `cellbox.errors`. Those that a daemon sends carry `code`, `message`,
`details`, `request_id` and `http_status`. A code that your client does not know yet arrives as a plain `APIError`.

```text
{tree}
```

## Codes

"""


def type_name(kind: Any) -> str:
    """A type as a reader would write it."""
    if kind is type(None):
        return "null"
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return type_name(arguments[0])
    if origin is typing.Literal:
        return " or ".join(f'"{value}"' for value in arguments)
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(type_name(one) for one in arguments if one is not msgspec.UnsetType)
    if origin in {list, dict, tuple}:
        return f"{origin.__name__}[{', '.join(type_name(one) for one in arguments)}]"
    return getattr(kind, "__name__", str(kind))


def structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for argument in typing.get_args(kind):
        yield from structs_in(argument)


def field_notes(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Field → the docstring below it in the source, base classes included."""
    notes: dict[str, str] = {}
    for kind in reversed(struct.__mro__):
        if kind in {msgspec.Struct, object, Value, RequestBody} or not issubclass(kind, msgspec.Struct):
            continue
        body = typing.cast("ast.ClassDef", ast.parse(inspect.getsource(kind)).body[0]).body
        for field, after in zip(body, [*body[1:], None], strict=True):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                notes[ast.unparse(field.target)] = " ".join(str(after.value.value).split())
    return notes


def default_of(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{msgspec.json.encode(field.default_factory()).decode()}`"
    if field.default is msgspec.NODEFAULT:
        return "required"
    return "" if field.default in {msgspec.UNSET, None} else f"`{msgspec.json.encode(field.default).decode()}`"


def field_table(struct: type[msgspec.Struct]) -> Iterator[str]:
    notes = field_notes(struct)
    is_request = issubclass(struct, RequestBody)
    yield "| field | type | default | |\n|---|---|---|---|\n" if is_request else "| field | type | |\n|---|---|---|\n"
    hints = typing.get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        default = default_of(field)
        middle = f" {default} |" if is_request else ""
        yield f"| `{field.encode_name}` | {type_name(hints[field.name])} |{middle} {notes.get(field.name, '')} |\n"
    yield "\n"


def operation_section(operation: Operation[Any, Any]) -> Iterator[str]:
    yield f"### `{operation.method} /v1{operation.path}`\n\n{operation.summary}\n\n"
    answer = "becomes a WebSocket" if operation.is_websocket else f"answers {operation.status}"
    facts = [f"operation `{operation.name}`", answer]
    if operation.scope == "admin":
        facts.append("needs an **admin** key")
    if operation.query:
        facts.append("query: " + ", ".join(f"`{name}`" for name in operation.query))
    yield " · ".join(facts) + "\n\n"
    if operation.body is bytes:
        yield "**Body:** raw bytes.\n\n"
    for struct in structs_in(operation.body):
        yield f"**Body:** `{struct.__name__}`\n\n"
        yield from field_table(struct)
    if operation.is_websocket:
        yield f"**The client sends:** {message_names(operation.messages)}\n\n"
        for struct in structs_in(operation.messages):
            yield f"`{struct.__name__}`\n\n"
            yield from field_table(struct)
        yield f"**The server sends:** {message_names(operation.events)}\n\n"
    elif operation.events is not None:
        names = " · ".join(f"`{one.__struct_config__.tag}` ({one.__name__})" for one in structs_in(operation.events))
        yield f"**Events:** {names}\n\n"
    if operation.result is bytes or operation.result is str:
        yield f"**Answer:** {'raw bytes' if operation.result is bytes else 'plain text'}.\n\n"
    elif operation.result is not type(None):
        named = ", ".join(f"[`{one.__name__}`](#{one.__name__.lower()})" for one in structs_in(operation.result))
        many = "a list of " if typing.get_origin(operation.result) is list else ""
        yield f"**Answer:** {many}{named or type_name(operation.result)}\n\n"


def message_names(union: Any) -> str:
    """The messages of one side of a WebSocket."""
    members = typing.get_args(union) or (union,)
    names = ["bytes, as binary messages" if one is bytes else f"`{one.__name__}`" for one in members]
    return " · ".join(names)


def answers() -> Iterator[type[msgspec.Struct]]:
    """Every value that answers and events consist of, each once, in order of appearance."""
    seen: set[type] = set()
    queue = [one for op in OPERATIONS.values() for kind in (op.result, op.events) for one in structs_in(kind)]
    while queue:
        struct = queue.pop(0)
        if struct in seen:
            continue
        seen.add(struct)
        yield struct
        for hint in typing.get_type_hints(struct).values():
            queue.extend(structs_in(hint))


def http_reference() -> str:
    parts = [NOTE, HTTP_HEAD]
    assert sorted(OPERATIONS) == sorted(name for names in GROUPS.values() for name in names), "GROUPS is not complete"
    for group, names in GROUPS.items():
        parts.append(f"\n## {group}\n\n")
        for name in names:
            parts.extend(operation_section(OPERATIONS[name]))
    parts.append("\n## Values\n\n")
    for struct in answers():
        summary = " ".join((struct.__doc__ or "").split("\n\n")[0].split())
        parts.append(f"### {struct.__name__}\n\n{summary}\n\n" if summary else f"### {struct.__name__}\n\n")
        parts.extend(field_table(struct))
    parts.append(f"`status` of a sandbox is one of {', '.join(f'`{one}`' for one in sandboxes.SandboxStatus)}.\n")
    return "".join(parts)


def errors_reference() -> str:
    tree = (errors.__doc__ or "").split("```")[1].strip()
    parts = [NOTE, ERRORS_HEAD.replace("{tree}", tree)]
    for code, kind in sorted(errors.APIError.by_code.items(), key=lambda item: (item[1].status, item[0])):
        parts.append(f"### `{code}` ({kind.status})\n\n`{kind.__name__}`. {' '.join((kind.__doc__ or '').split())}\n\n")
    return "".join(parts).rstrip() + "\n"


SETTINGS_HEAD = """# Settings of the daemon

Each is set, in this order of precedence, by an option of `cellbox serve` where there is one, by the environment variable, or in a TOML file:
`--config FILE`, `CELLBOX_CONFIG`, or `/etc/cellbox/cellbox.toml`. An unknown key in the file is an error. Lists are
comma-separated in a variable.

```toml
listen = "127.0.0.1:8080"
data_dir = "/var/lib/cellbox"
max_sandboxes = 200
```

"""
SETTINGS_TAIL = """## Of clients

| variable | |
|---|---|
| `CELLBOX_API_URL`, `CELLBOX_API_KEY` | which daemon the SDK and the command use; `PANDASTACK_API`, `PANDASTACK_API_KEY` work too |
| `CELLBOX_RUNTIME_DIR` | where a private daemon's socket and log are |
| `CELLBOX_DEBUG` | `1` makes the command show tracebacks |

`~/.config/cellbox/config.toml` may hold `api_url` and `api_key`.

## Of the gVisor engine

| variable | |
|---|---|
| `CELLBOX_RUNSC` | this binary and no other |
| `CELLBOX_RUNSC_ALLOW_UNSUPPORTED` | `1` accepts a release that is too old, at your own risk |
| `CELLBOX_SHELLS` | how many empty machines are kept ready, so that a start has only to restore; default 2, 0 keeps none. Each takes 12.5 MB |
"""


def settings_reference() -> str:
    from cellbox.control.settings import Settings

    parts = [NOTE, SETTINGS_HEAD]
    notes, hints = field_notes(Settings), typing.get_type_hints(Settings, include_extras=True)
    for field in msgspec.structs.fields(Settings):
        default = "" if field.default is msgspec.NODEFAULT else json.dumps(field.default)
        shown = f", default `{default}`" if default not in {"", "null", '""'} else ""
        parts.append(f"### `{field.name}`\n\n`CELLBOX_{field.name.upper()}` ({type_name(hints[field.name])}{shown}). ")
        parts.append(f"{notes.get(field.name, '')}\n\n")
    return "".join([*parts, SETTINGS_TAIL])


def main() -> int:
    stale: list[str] = []
    for name, text in {
        "http.md": http_reference(),
        "errors.md": errors_reference(),
        "settings.md": settings_reference(),
    }.items():
        path = DOCS / name
        if path.exists() and path.read_text() == text:
            continue
        if "--check" in sys.argv:
            stale.append(name)
        else:
            path.write_text(text)
    if stale:
        print(f"docs/{', docs/'.join(stale)}: stale; run `python docs/generate_reference.py`")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
