"""Templates and their builds. What is uploaded is put into a folder, file by file, and never unpacked here."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl

from cellbox import errors
from cellbox.protocol import operations
from cellbox.protocol.templates import BuildEnded, BuildEvent, TemplateBuild, TemplateInfo
from cellbox.server.call import Answer, Call
from cellbox.server.multipart import MAX_FIELD_BYTES, MAX_FIELDS, form_boundary, read_form
from cellbox.server.routing import Handlers
from cellbox.server.streams import EventStream, PlainLine
from cellbox.templates.catalogue import ALIASES, Template
from cellbox.templates.recipe import RECIPE_FILE, check_name, read_recipe
from cellbox.templates.templates import RECIPES, builtin_names

handlers = Handlers()

_PART = re.compile(r"[^/\\\x00-\x1f\x7f]{1,255}")
_MAX_DEPTH = 32
_ROOTFS_FILE = "rootfs.tar"
_FIELDS = {"name", "replace", "size_mb", "memory_mb", "cpu", "kernel", "dockerfile", "image_ref"}


@handlers.handles(operations.list_templates)
async def list_templates(call: Call[None]) -> list[TemplateInfo]:
    return _catalogue(call)


@handlers.handles(operations.get_template)
async def get_template(call: Call[None]) -> TemplateInfo:
    name = call.parameters["name"]
    known = {template.name: template for template in _catalogue(call)}
    found = known.get(name) or known.get(ALIASES.get(name, name))
    if found is None:
        raise errors.TemplateNotFoundError(f"no template {name[:80]!r}")
    return found


@handlers.handles(operations.delete_template)
async def delete_template(call: Call[None]) -> None:
    name = call.parameters["name"]
    if name in builtin_names():
        raise errors.PermissionDeniedError("global templates cannot be deleted")
    in_use = await call.control.template_digests_in_use()
    await call.control.templates.delete(name, in_use=in_use)


@handlers.handles(operations.build_template)
async def build_template(call: Call[bytes]) -> TemplateBuild:
    folder = call.control.builds.new_folder()
    try:
        fields = await _receive(call, folder)
        replace = fields.get("replace", "").lower() in ("1", "true")
        name = check_name(fields["name"]) if fields.get("name") else None
        if name in builtin_names() and not any(folder.iterdir()):
            await asyncio.to_thread(folder.rmdir)
            return call.control.builds.start(None, name=name)
        await asyncio.to_thread(_complete, folder, fields)
        return call.control.builds.start(folder, name=name, replace=replace)
    except BaseException:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        raise


@handlers.handles(operations.list_builds)
async def list_builds(call: Call[None]) -> list[TemplateBuild]:
    return call.control.builds.list()


@handlers.handles(operations.get_build)
async def get_build(call: Call[None]) -> TemplateBuild:
    return call.control.builds.get(call.parameters["build_id"])


@handlers.handles(operations.get_build_logs)
async def get_build_logs(call: Call[None]) -> Answer:
    build_id = call.parameters["build_id"]
    call.control.builds.get(build_id)
    events: AsyncIterator[Any] = call.control.builds.follow(build_id, wait=call.flag("follow"))
    if call.headers.get(b"user-agent", b"").startswith(b"pandastack-py/"):
        return EventStream(call, _as_plain_lines(events))
    return EventStream(call, events, terminal=BuildEnded)


async def _as_plain_lines(events: AsyncIterator[BuildEvent]) -> AsyncIterator[PlainLine]:
    """The form that PandaStack's client reads: bare text, and `end` for the end."""
    async for event in events:
        yield PlainLine("done", "end") if isinstance(event, BuildEnded) else PlainLine("", event.line)


def _catalogue(call: Call[None]) -> list[TemplateInfo]:
    """Built templates, then those of Cellbox's own that are yet to be built."""
    built = call.control.templates.list()
    names = {template.name for template in built}
    unbuilt = [_unbuilt_info(name) for name in builtin_names() if name not in names]
    return [_info(template) for template in built] + unbuilt


def _info(template: Template) -> TemplateInfo:
    label = template.label
    return TemplateInfo(
        name=template.name,
        digest=template.digest,
        cpu=template.cpu,
        memory_mb=template.memory_mb,
        disk_mb=template.disk_mb,
        size_bytes=template.manifest.size_bytes,
        is_global=label.is_builtin,
        label=template.name,
        description=label.description,
        category=label.category,
        base=label.base,
        tools=label.tools,
        aliases=_aliases(template.name),
        created_at=template.manifest.created_at,
    )


def _unbuilt_info(name: str) -> TemplateInfo:
    file = read_recipe(RECIPES / name).file
    return TemplateInfo(
        name=name,
        digest="",
        cpu=file.defaults.cpu,
        memory_mb=file.defaults.memory_mb,
        disk_mb=file.defaults.disk_mb,
        is_built=False,
        label=name,
        description=file.description,
        category=file.category,
        base=file.base,
        tools=file.tools,
        aliases=_aliases(name),
    )


def _aliases(name: str) -> list[str]:
    return [alias for alias, target in ALIASES.items() if target == name]


async def _receive(call: Call[bytes], folder: Path) -> dict[str, str]:
    """Write the files of the form into `folder` and return its fields."""
    content_type = call.headers.get(b"content-type", b"")
    chunks = call.chunks(call.control.settings.max_template_bytes)
    if content_type.lower().startswith(b"multipart/form-data"):
        fields = await read_form(chunks, form_boundary(content_type), lambda name, _: _open(folder, name))
    elif content_type.lower().startswith(b"application/x-www-form-urlencoded"):
        body = b"".join([chunk async for chunk in call.chunks(MAX_FIELD_BYTES)])
        fields = dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=MAX_FIELDS))
    else:
        raise errors.InvalidRequestError("send the recipe as multipart/form-data", http_status=415)
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        raise errors.InvalidRequestError(f"unknown form field {unknown[0][:40]!r}")
    return fields


def _open(folder: Path, name: str) -> BinaryIO:
    """Make the file that a part is for; its name is a path relative to the recipe (attack: leaving the folder)."""
    parts = (_ROOTFS_FILE if name == "rootfs" else name).split("/")
    if len(parts) > _MAX_DEPTH or any(part in (".", "..") or not _PART.fullmatch(part) for part in parts):
        raise errors.InvalidRequestError(f"{name[:80]!r} is no plain relative path")
    path = folder.joinpath(*parts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")
    except (FileExistsError, NotADirectoryError):
        raise errors.InvalidRequestError(f"{name[:80]!r} is sent twice, or as a file and a folder") from None


def _complete(folder: Path, fields: dict[str, str]) -> None:
    """Check that there is something to build; a bare root filesystem is given a recipe."""
    if "dockerfile" in fields:
        raise errors.APIError(
            "Dockerfiles can't be built here", http_status=501, detail="write a recipe.toml, or send a rootfs tar"
        )
    if "image_ref" in fields:
        raise errors.InvalidRequestError(
            "images can't be pulled here", detail="put an OCI layout into the recipe's folder, or send a rootfs tar"
        )
    recipe, has_rootfs = folder / RECIPE_FILE, (folder / _ROOTFS_FILE).exists()
    if not recipe.exists() and not has_rootfs:
        raise errors.InvalidRequestError("exactly one of recipe.toml and rootfs must be sent")
    if not recipe.exists():
        name = check_name(fields.get("name", ""))
        with _as_invalid_request():
            defaults = {
                "memory_mb": int(fields.get("memory_mb", 1024)),
                "disk_mb": int(fields.get("size_mb", 1024)),
                "cpu": float(fields.get("cpu", 2)),
            }
        lines = [f'name = "{name}"', f'rootfs = "{_ROOTFS_FILE}"', "[defaults]"]
        recipe.write_text("\n".join(lines + [f"{key} = {value}" for key, value in defaults.items()]) + "\n")
    read_recipe(folder)


@contextmanager
def _as_invalid_request() -> Generator[None]:
    try:
        yield
    except ValueError:
        raise errors.InvalidRequestError("memory_mb, size_mb and cpu must be numbers") from None
