"""Real builds of small templates: recipe, archive and OCI layout; and what must be refused."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json
import os
import platform
import tarfile
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cellbox.engines.base import Engine
from cellbox.errors import InvalidRequestError, TemplateBuildError, TemplateExistsError, UnknownTemplateError
from cellbox.templates.bake import BakedFacts
from cellbox.templates.catalogue import Template
from cellbox.templates.events import BuildDone, BuildEvent, Progress, StepDone, StepFailed, StepLog
from cellbox.templates.sandboxed import Workbench
from cellbox.templates.templates import Templates

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


def write_recipe(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text(text)
    return folder


def write_wheel(folder: Path, name: str, code: str) -> None:
    """A pure wheel, made without a build tool."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, content in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            wheel.writestr(path, content)


async def build(templates: Templates, source: Path | str, **options: Any) -> list[BuildEvent]:
    return [event async for event in templates.build(source, **options)]


async def fail(templates: Templates, source: Path) -> tuple[list[BuildEvent], TemplateBuildError]:
    events: list[BuildEvent] = []

    async def collect() -> None:
        async for event in templates.build(source):
            events.append(event)  # noqa: PERF401 - what came before the failure is wanted

    with pytest.raises(TemplateBuildError) as caught:
        await collect()
    assert not any(isinstance(event, BuildDone) and event.template != "base" for event in events)
    return events, caught.value


async def run(engine: Engine, template: Template, script: str) -> str:
    """Run a script in a throw-away sandbox of a template (which it must not change) and return what it printed."""
    lines: list[str] = []

    def take(event: BuildEvent) -> None:
        if isinstance(event, StepLog):
            lines.append(event.line)

    async with Progress("test", take).step("test") as step:
        await Workbench(engine, template.rootfs, template.env).shell(script, step)
    return "\n".join(lines)


def tree(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


async def test_template_with_file_env_wheel_and_start_command(
    templates: Templates, engine: Engine, tmp_path: Path
) -> None:
    folder = write_recipe(
        tmp_path,
        'name = "mine"\nbase = "base"\npip = ["greeting"]\nstart_command = "echo up"\nuser = "root"\n'
        'run = ["echo $GREETING > /etc/ran; id -u >> /etc/ran; pwd >> /etc/ran"]\n'
        '[env]\nGREETING = "hello"\n[defaults]\nmemory_mb = 256\ndisk_mb = 128\ncpu = 1\n',
    )
    write_wheel(folder / "wheels", "greeting", "def greet(): return 'hello from a wheel'\n")
    (folder / "files/opt/app").mkdir(parents=True)
    (folder / "files/opt/app/.env").write_text("A=1")
    (folder / "files/opt/app/run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "files/opt/app/run.sh").chmod(0o755)
    (folder / "files/opt/link").symlink_to("app/run.sh")
    events = await build(templates, folder)
    assert isinstance(events[-1], BuildDone)
    assert events[-1].was_built
    template = templates.get("mine")
    assert (template.env, template.start_command, template.memory_mb) == ({"GREETING": "hello"}, "echo up", 256)
    assert template.manifest.packages["pip"]["greeting"] == "1.0"
    assert (template.rootfs / "etc/ran").read_text() == "hello\n0\n/root\n"
    assert (template.rootfs / "opt/app/.env").stat().st_uid == 0
    printed = await run(
        engine,
        template,
        "cat /opt/app/.env; echo; /opt/link; python -c 'import greeting; print(greeting.greet())'; "
        "test $(command -v pip) && python -c 'import sys; print(sys.executable)'; ls -ld /workspace /tmp; date +%Z",
    )
    assert "A=1" in printed
    assert "hello from a wheel" in printed
    image = templates.baked_image(template)
    assert image is not None
    assert tree(image)
    again = await build(templates, folder, name="same-content")
    assert isinstance(again[-1], BuildDone)
    assert not again[-1].was_built
    assert templates.get("same-content").digest == template.digest
    with pytest.raises(TemplateExistsError):
        await build(templates, folder, replace=False)
    await templates.delete("same-content")
    assert template.rootfs.is_dir()
    await templates.delete("mine", in_use=[template.digest])
    assert template.rootfs.is_dir()
    with pytest.raises(UnknownTemplateError):
        templates.get("mine")
    await templates.sweep()
    assert not template.directory.exists()
    assert templates.get("base")


@pytest.mark.parametrize(("script", "code"), [("false", 1), ("exit 3", 3), ("true | cat; kill -9 $$", 137)])
async def test_failed_step_is_a_failed_build(templates: Templates, tmp_path: Path, script: str, code: int) -> None:
    recipe = f'name = "failing"\nbase = "base"\nrun = ["true", "echo before; {script}; echo after", "true"]\n'
    events, error = await fail(templates, write_recipe(tmp_path, recipe))
    failed = next(event for event in events if isinstance(event, StepFailed))
    assert failed.exit_code == code
    assert failed.step.startswith("run 2")
    assert "before" in error.details["log_tail"]
    assert "after" not in error.details["log_tail"]
    with pytest.raises(UnknownTemplateError):
        templates.get("failing")
    assert tree(templates.get("base").directory.parent / "building") == []


async def test_step_has_no_network_and_no_host_files(templates: Templates, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("secret")
    recipe = (
        'name = "curious"\nbase = "base"\n'
        f'run = ["! cat {canary}; ! curl -s --max-time 3 http://192.0.2.1/; env; cat /proc/net/dev"]\n'
    )
    events = await build(templates, write_recipe(tmp_path / "recipe", recipe))
    text = "\n".join(event.line for event in events if isinstance(event, StepLog))
    assert "secret" not in text
    assert "No such file" in text
    assert not {name for name in os.environ if len(os.environ[name]) > 30 and os.environ[name] in text} - {"PATH"}
    await templates.delete("curious")


async def test_step_cannot_make_the_host_write_through_a_link(templates: Templates, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    recipe = f'name = "evil"\nbase = "base"\nrun = ["mv /.cellbox /old && ln -s {outside} /.cellbox"]\n'
    folder = write_recipe(tmp_path / "recipe", recipe)
    with pytest.raises((TemplateBuildError, OSError)):
        await build(templates, folder)
    assert tree(outside) == []


def make_tar(path: Path, fill: Callable[[tarfile.TarFile], None], mode: str = "w:gz") -> None:
    with tarfile.open(path, mode) as archive:  # pyright: ignore[reportCallIssue, reportArgumentType]
        fill(archive)


def entry(name: str, kind: bytes = tarfile.REGTYPE, **more: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = more.pop("mode", 0o755)
    for key, value in more.items():
        setattr(info, key, value)
    return info


def static_root(archive: tarfile.TarFile) -> None:
    """A root with no libc, no shell and no Python."""
    archive.addfile(entry("./", tarfile.DIRTYPE))
    archive.addfile(entry("etc", tarfile.DIRTYPE))
    archive.addfile(entry("etc/motd", size=5), io.BytesIO(b"hello"))
    archive.addfile(entry("etc/link", tarfile.SYMTYPE, linkname="/etc/motd"))
    archive.addfile(entry("etc/hard", tarfile.LNKTYPE, linkname="etc/motd"))
    archive.addfile(entry("setuid", size=1, mode=0o4755, uid=7), io.BytesIO(b"x"))


async def test_tar_of_a_root_without_anything_boots(templates: Templates, tmp_path: Path) -> None:
    folder = write_recipe(tmp_path, 'name = "bare"\nrootfs = "root.tar.gz"\n')
    make_tar(folder / "root.tar.gz", static_root)
    await build(templates, folder)
    template = templates.get("bare")
    root = template.rootfs
    assert (root / "etc/hard").stat().st_ino == (root / "etc/motd").stat().st_ino
    assert (root / "etc/link").readlink() == Path("/etc/motd")
    assert (root / "setuid").stat().st_uid == 7
    assert (root / "workspace").is_dir()
    image = templates.baked_image(template)
    assert image is not None
    facts = msgspec.json.decode((image.parent / "facts.json").read_bytes(), type=BakedFacts)
    assert facts.python == ""
    assert facts.kernel_problem
    await templates.delete("bare")


@pytest.mark.parametrize(
    ("kind", "word"),
    [(tarfile.CHRTYPE, "character device"), (tarfile.BLKTYPE, "block device"), (tarfile.FIFOTYPE, "pipe")],
)
async def test_device_nodes_are_refused(templates: Templates, tmp_path: Path, kind: bytes, word: str) -> None:
    def fill(archive: tarfile.TarFile) -> None:
        static_root(archive)
        archive.addfile(entry("usr/share/harmless", kind, devmajor=1, devminor=3))

    folder = write_recipe(tmp_path, 'name = "devices"\nrootfs = "root.tar"\n')
    make_tar(folder / "root.tar", fill, "w")
    _, error = await fail(templates, folder)
    assert f"/usr/share/harmless ({word})" in error.details["log_tail"]


@pytest.mark.parametrize(
    "members",
    [
        [entry("../../../escaped", size=0)],
        [entry("a", tarfile.SYMTYPE, linkname="/etc"), entry("a/../../escaped", size=0)],
        [entry("hard", tarfile.LNKTYPE, linkname="../../../../etc/passwd")],
    ],
)
async def test_climbing_names_are_refused(templates: Templates, tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    folder = write_recipe(tmp_path, 'name = "climbing"\nrootfs = "root.tar"\n')

    def fill(archive: tarfile.TarFile) -> None:
        for member in members:
            archive.addfile(member, io.BytesIO())

    make_tar(folder / "root.tar", fill, "w")
    _, error = await fail(templates, folder)
    assert "climbs" in error.details["log_tail"]


async def test_links_in_an_archive_lead_nowhere_else(templates: Templates, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()

    def fill(archive: tarfile.TarFile) -> None:
        static_root(archive)
        archive.addfile(entry("out", tarfile.SYMTYPE, linkname=str(outside)))
        archive.addfile(entry("out/written", size=1), io.BytesIO(b"x"))
        archive.addfile(entry(".cellbox", tarfile.SYMTYPE, linkname=str(outside)))

    folder = write_recipe(tmp_path / "recipe", 'name = "linking"\nrootfs = "root.tar"\n')
    make_tar(folder / "root.tar", fill, "w")
    try:
        await build(templates, folder)
    except TemplateBuildError:
        pass
    else:
        await templates.delete("linking")
    assert tree(outside) == []


async def test_garbage_archive_is_refused(templates: Templates, tmp_path: Path) -> None:
    folder = write_recipe(tmp_path, 'name = "garbage"\nrootfs = "root.tar"\n')
    (folder / "root.tar").write_bytes(os.urandom(5000))
    _, error = await fail(templates, folder)
    assert "no tar archive" in error.details["log_tail"]


def layer(**files: bytes | None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            path = name.replace("__", "/").replace("WH_", ".wh.")
            kind = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            archive.addfile(entry(path, kind, size=len(content or b"")), io.BytesIO(content or b""))
    return gzip.compress(buffer.getvalue())


async def test_oci_layout_with_whiteouts(templates: Templates, tmp_path: Path) -> None:
    folder = write_recipe(tmp_path, 'name = "image"\noci = "layout"\n[env]\nB = "2"\n')
    blobs = folder / "layout/blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    lower = layer(kept=b"1", removed=b"1", folder=None, folder__old=b"1", other=None, other__gone=b"1")
    upper = layer(**{"WH_removed": b"", "folder__new": b"2", "folder__.wh..wh..opq": b"", "other__WH_gone": b""})
    config = {"architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()], "config": {"Env": ["A=1"]}}
    manifest = {
        "schemaVersion": 2,
        "config": blob(json.dumps(config).encode(), "config.v1+json"),
        "layers": [blob(lower, "layer.v1.tar+gzip"), blob(upper, "layer.v1.tar+gzip")],
    }
    index = {"schemaVersion": 2, "manifests": [blob(json.dumps(manifest).encode(), "manifest.v1+json")]}
    (folder / "layout/index.json").write_text(json.dumps(index))
    await build(templates, folder)
    template = templates.get("image")
    assert (template.rootfs / "kept").exists()
    assert not (template.rootfs / "removed").exists()
    assert tree(template.rootfs / "folder") == ["new"]
    assert tree(template.rootfs / "other") == []
    assert template.env == {"A": "1", "B": "2"}
    await templates.delete("image")


async def test_two_builds_of_the_same_content_do_it_once(templates: Templates, tmp_path: Path) -> None:
    folder = write_recipe(tmp_path, f'name = "twice"\nbase = "base"\nrun = ["echo {uuid.uuid4()} > /etc/x"]\n')
    both = await asyncio.gather(build(templates, folder), build(templates, folder))
    assert sorted(event.was_built for events in both if isinstance(event := events[-1], BuildDone)) == [False, True]
    assert sum(isinstance(event, StepDone) and event.step == "check" for events in both for event in events) == 1
    await templates.delete("twice")


async def test_names_of_our_own_templates_are_taken(templates: Templates, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="own"):
        await build(templates, write_recipe(tmp_path, 'name = "base"\nbase = "base"\n'))
    with pytest.raises(UnknownTemplateError):
        await build(templates, write_recipe(tmp_path, 'name = "x"\nbase = "no-such"\n'))
