"""`cellbox template`: what sandboxes are made from."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from cellbox import Client
from cellbox.cli.about import Flag, JsonFlag
from cellbox.cli.exits import Exit
from cellbox.cli.output import print_fields, print_json, print_table, say, size, yes_no
from cellbox.errors import TemplateBuildError
from cellbox.protocol.templates import TemplateInfo

app = App(name="template", help="List, build and delete templates.")


@app.command(name="list")
def list_all(*, as_json: JsonFlag = False) -> None:
    """List the templates that sandboxes can be made from."""
    with Client() as client:
        found = client.templates.list()
    if as_json:
        print_json(found)
        return
    print_table(
        ("NAME", "BUILT", "SIZE", "CPU", "MEMORY", "DISK", "DESCRIPTION"),
        [
            (
                template.name,
                yes_no(template.is_built),
                size(template.size_bytes) if template.is_built else "-",
                f"{template.cpu:g}",
                f"{template.memory_mb} MiB",
                f"{template.disk_mb} MiB",
                template.description or template.label,
            )
            for template in found
        ],
    )


@app.command
def show(name: str, /, *, as_json: JsonFlag = False) -> None:
    """Show everything about a template.

    Args:
        name: Its name or an alias.
    """
    with Client() as client:
        template = client.templates.get(name)
    if as_json:
        print_json(template)
    else:
        print_fields([(key, _plain(getattr(template, key))) for key in TemplateInfo.__struct_fields__])


@app.command
def build(
    source: str,
    /,
    *,
    name: str | None = None,
    replace: Flag = False,
    as_json: JsonFlag = False,
) -> int:
    """Build a template from a recipe folder, or one of Cellbox's own, with its log as it goes.

    Args:
        source: A folder with `recipe.toml`, see docs/templates.md; or the name of a built-in template.
        name: In place of the recipe's own.
        replace: Take the place of a template of this name. Sandboxes that exist keep what they have.
    """
    with Client() as client:
        try:
            if Path(source).is_dir():
                built = client.templates.build(Path(source), name=name, replace=replace, on_line=say)
            else:
                built = client.templates.ensure(source, on_line=say)
        except TemplateBuildError as error:
            say(f"cellbox: {error.message}")
            return Exit.FAILURE
    print_json(built) if as_json else print(built.name)
    return Exit.OK


@app.command
def delete(name: str, /) -> None:
    """Remove a template from the catalogue. Sandboxes made from it live on.

    Args:
        name: Its name.
    """
    with Client() as client:
        client.templates.delete(name)
    say(f"Template {name} is gone.")


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return "" if value is None else str(value)
