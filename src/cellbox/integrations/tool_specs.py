"""The tools, declared once: names, arguments and descriptions. Frameworks are given what is derived from them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from cellbox.integrations.answers import Limits
from cellbox.integrations.facts import Facts
from cellbox.protocol.values import RequestBody

DEFAULT_SECONDS = 60.0
MAX_SECONDS = 600.0
_Seconds = Annotated[
    float, Meta(gt=0, le=MAX_SECONDS, description=f"Seconds that it may run, at most {MAX_SECONDS:g}.")
]


class Arguments(RequestBody):
    """Base of all arguments."""

    tool: ClassVar[str]
    is_repeatable: ClassVar[bool]
    """Whether it does no harm to do it twice: it is tried again when nobody can tell whether it was done."""


class RunPython(Arguments):
    """Arguments of `run_python`."""

    tool: ClassVar[str] = "run_python"
    is_repeatable: ClassVar[bool] = False

    code: Annotated[str, Meta(min_length=1, description="Python source to run.")]
    timeout_seconds: _Seconds = DEFAULT_SECONDS


class RunShell(Arguments):
    """Arguments of `run_shell`."""

    tool: ClassVar[str] = "run_shell"
    is_repeatable: ClassVar[bool] = False

    command: Annotated[str, Meta(min_length=1, description="Shell text for bash.")]
    timeout_seconds: _Seconds = DEFAULT_SECONDS


class ReadFile(Arguments):
    """Arguments of `read_file`."""

    tool: ClassVar[str] = "read_file"
    is_repeatable: ClassVar[bool] = True

    path: Annotated[str, Meta(min_length=1, description="Absolute, or relative to /workspace.")]
    offset: Annotated[int, Meta(ge=0, description="Byte to begin at.")] = 0


class WriteFile(Arguments):
    """Arguments of `write_file`."""

    tool: ClassVar[str] = "write_file"
    is_repeatable: ClassVar[bool] = True

    path: Annotated[str, Meta(min_length=1, description="Absolute, or relative to /workspace.")]
    content: Annotated[str, Meta(description="The whole text of the file.")]


class ListFiles(Arguments):
    """Arguments of `list_files`."""

    tool: ClassVar[str] = "list_files"
    is_repeatable: ClassVar[bool] = True

    path: Annotated[str, Meta(min_length=1, description="A directory, absolute or relative to /workspace.")] = (
        "/workspace"
    )
    depth: Annotated[int, Meta(ge=1, le=5, description="How many levels to list.")] = 1


class InstallPackages(Arguments):
    """Arguments of `install_packages`."""

    tool: ClassVar[str] = "install_packages"
    is_repeatable: ClassVar[bool] = True

    packages: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=200)]],
        Meta(min_length=1, max_length=50, description="Names as on PyPI, with a version if need be: `polars==1.0`."),
    ]


class ViewImage(Arguments):
    """Arguments of `view_image`."""

    tool: ClassVar[str] = "view_image"
    is_repeatable: ClassVar[bool] = True

    image: Annotated[str, Meta(min_length=1, description="The name given with the image: `chart-1`.")]


ARGUMENTS: dict[str, type[Arguments]] = {
    kind.tool: kind for kind in (RunPython, RunShell, ReadFile, WriteFile, ListFiles, InstallPackages, ViewImage)
}
"""The arguments of each tool, by its name."""
DEFAULT_TOOLS = ("run_python", "run_shell", "read_file", "write_file", "list_files", "install_packages")
"""Given to a model unless told otherwise; `view_image` is for models that can see."""
_NEED_NETWORK = {"install_packages"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """One tool, as any framework needs it."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of its arguments: one object, without references."""
    arguments: type[Arguments]


def tool_specs(facts: Facts, limits: Limits | None = None, only: Collection[str] | None = None) -> list[ToolSpec]:
    """The tools for a machine with these facts: one that needs a network is left out where there is none.

    Args:
        only: Names of the tools, in place of the usual ones.

    Raises:
        ValueError: There is no tool of that name.
    """
    if unknown := set(only or ()) - ARGUMENTS.keys():
        raise ValueError(f"No tool {min(unknown)!r}; there are {', '.join(ARGUMENTS)}")
    names = DEFAULT_TOOLS if only is None else only
    return [
        ToolSpec(
            name=name,
            description=_describe(name, facts, limits or Limits()),
            parameters=_parameters(kind),
            arguments=kind,
        )
        for name, kind in ARGUMENTS.items()
        if name in names and (facts.has_network or name not in _NEED_NETWORK)
    ]


def _parameters(kind: type[Arguments]) -> dict[str, Any]:
    _, components = msgspec.json.schema_components([kind])
    schema = dict(components[kind.__name__])
    schema.pop("title", None)
    schema.pop("description", None)
    return schema


def _describe(name: str, facts: Facts, limits: Limits) -> str:
    installed = f"Installed: {', '.join(facts.installed)}. " if facts.installed else ""
    if name == "run_python":
        return (
            "Run Python in a Linux sandbox and get what it printed, the value of its last expression, or the "
            "traceback. Use it whenever a question needs computation or a look at data.\n"
            "State persists: variables, imports and functions of earlier calls are still there, so build on them "
            "instead of repeating them. Files persist too; the working directory is /workspace.\n"
            f"{installed}{facts.machine()}\n"
            "Charts are captured by themselves and shown to the user; you get a short reference, not the picture. "
            "Errors come back as text: read the traceback, correct the code and call again. Output beyond "
            f"{limits.stdout} characters is cut in the middle, so print summaries, shapes and slices. A call may take "
            f"{DEFAULT_SECONDS:g} seconds unless timeout_seconds says otherwise. Nobody is there to type input."
        )
    if name == "run_shell":
        return (
            "Run a bash command in the same sandbox and get its output and exit code. Each call starts a new shell in "
            "/workspace: files persist, `cd` and shell variables do not.\n"
            f"{installed}{facts.machine()}\n"
            f"Output beyond {limits.stdout} characters is cut in the middle. Standard input is empty."
        )
    if name == "read_file":
        return (
            f"Read a text file of the sandbox, {limits.file} characters at a time: look at a file's beginning before "
            "you write code for it. An image is shown to the user."
        )
    if name == "install_packages":
        return "Install Python packages into the sandbox with pip. They stay for the rest of the conversation."
    return {
        "write_file": "Write a text file in the sandbox, whole. Parent directories are made.",
        "list_files": "List files of the sandbox with their sizes, so that you need not guess names.",
        "view_image": "Look at an image that an earlier call produced, by the name it was told under.",
    }[name]
