"""`cellbox version`, and the options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cellbox._version import __version__
from cellbox.cli.output import print_fields, print_json

Flag = Annotated[bool, Parameter(show_default=False)]
JsonFlag = Annotated[bool, Parameter(name="--json", show_default=False, help="Print JSON with stable keys.")]
RawFlag = Annotated[
    bool, Parameter(name="--raw", show_default=False, help="Let the sandbox's output control this terminal.")
]
DataDir = Annotated[Path | None, Parameter(name="--data-dir")]
EngineName = Annotated[str | None, Parameter(name="--engine")]
Dashable = Annotated[str, Parameter(allow_leading_hyphen=True)]
"""A path, or `-` for a standard stream."""


def version(*, as_json: JsonFlag = False) -> None:
    """Print the version of this command and, where one is configured, of the daemon."""
    facts = {"cellbox": __version__}
    if os.environ.get("CELLBOX_API_URL") or os.environ.get("PANDASTACK_API"):
        from cellbox import Client

        with Client() as client:
            facts["daemon"] = client.version().version
    print_json(facts) if as_json else print_fields(list(facts.items()))


def pairs(values: list[str] | None, option: str) -> dict[str, str]:
    """`NAME=VALUE` options as a dictionary."""
    from cellbox.cli.exits import UsageError

    found: dict[str, str] = {}
    for value in values or []:
        name, sign, rest = value.partition("=")
        if not name or not sign:
            raise UsageError(f"{option} takes NAME=VALUE, not {value!r}.")
        found[name] = rest
    return found
