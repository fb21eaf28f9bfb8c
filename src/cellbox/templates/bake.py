"""Bakes a template: boots it once, waits until the guest is up and its zygote warm, and saves that as a checkpoint.

A checkpoint fits one engine build, one guest program and one template. All three are in its key, so a newer engine or
guest finds none and bakes again, and never restores what it must not.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import shutil
import time
import uuid
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cellbox.engines.base import Engine, EngineFault, MachineSpec
from cellbox.templates import rootfs
from cellbox.templates.catalogue import Template
from cellbox.templates.events import Step, StepError
from cellbox.templates.guest_program import guest_argv, guest_digest, guest_path, guest_program, machine_env
from cellbox.templates.packages import locked
from cellbox.templates.sandboxed import follow_lines, give_back, read_available
from cellbox.wire import frames

TASKS = 256
_HELLO_SECONDS = 120.0


class Greeting(msgspec.Struct, frozen=True):
    """The guest's HELLO, decoded strictly: it comes from the sandbox. Mirrors `wire.messages.Hello`."""

    version: int
    guest_version: str
    python: str = ""
    kernel_problem: str = ""


class BakedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Kept beside a checkpoint: what it was made with and what the guest said of itself."""

    image_key: str
    guest_digest: str
    argv: tuple[str, ...]
    env: dict[str, str]
    python: str
    kernel_problem: str
    created_at: datetime
    boot_seconds: float
    size_bytes: int


def bake_key(engine: Engine) -> str:
    """Return what names the checkpoints of this engine and this guest."""
    parts = json.dumps([engine.name, engine.image_key(), guest_digest(), guest_argv()])
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def baked_image(template: Template, engine: Engine) -> Path | None:
    """Return the checkpoint that fits, if there is one. Quick: one look at the disk."""
    image = template.directory / "baked" / bake_key(engine)
    return image / "image" if (image / "facts.json").exists() else None


def install_guest(template: Template) -> None:
    """Put this installation's guest into the template, beside older ones that may be running."""
    if rootfs.read_file(template.rootfs, guest_path()) != guest_program():
        rootfs.write_file(template.rootfs, guest_path(), guest_program())


async def bake(template: Template, engine: Engine, step: Step) -> Path:
    """Return the checkpoint that fits, made now if need be. Raises `StepError` if the guest stays silent."""
    async with locked(template.directory / "bake.lock", step):
        if (image := baked_image(template, engine)) is not None:
            return image
        install_guest(template)
        folder = template.directory / "baked"
        partial = folder / f".{secrets.token_hex(6)}"
        (partial / "image").mkdir(parents=True)
        try:
            facts = await _checkpoint(template, engine, partial / "image", step)
            (partial / "facts.json").write_bytes(msgspec.json.encode(facts))
            target = folder / bake_key(engine)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        for outdated in folder.iterdir():  # a restored sandbox no longer needs its image
            if outdated != target:
                shutil.rmtree(outdated, ignore_errors=True)
    return target / "image"


async def _checkpoint(template: Template, engine: Engine, image: Path, step: Step) -> BakedFacts:
    started = time.monotonic()
    spec = MachineSpec(
        machine_id=str(uuid.uuid4()),
        rootfs=template.rootfs,
        argv=guest_argv(),
        env=machine_env(template.env),
        memory_mb=template.memory_mb,
        disk_mb=template.disk_mb,
        cpu=os.cpu_count() or 1,  # a restored guest sees as many as were there now; fewer can be shown, not more
        tasks=TASKS,
    )
    complaints: deque[str] = deque(maxlen=50)
    try:
        machine = await engine.boot(spec)
    except EngineFault as fault:
        raise StepError(f"the template does not boot: {fault}") from fault
    console = asyncio.create_task(follow_lines(machine.channel.console, complaints.append))
    try:
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                greeting = await _wait_for_hello(machine.channel.reader)
        except (TimeoutError, StepError, frames.ProtocolError) as error:
            for line in complaints:
                step.log(line)
            reason = str(error) or f"it said nothing for {_HELLO_SECONDS:.0f} s"
            raise StepError(f"the guest did not come up: {reason}") from None
        boot_seconds = time.monotonic() - started
        if greeting.kernel_problem:
            step.log(f"no Python kernel: {greeting.kernel_problem}")
        try:
            await machine.checkpoint(image, leave_running=False)
        except EngineFault as fault:
            raise StepError(f"the checkpoint failed: {fault}") from fault
    finally:
        console.cancel()
        await asyncio.gather(console, return_exceptions=True)
        await give_back(machine)
    size = sum(path.stat().st_size for path in image.iterdir())
    step.log(f"guest up in {boot_seconds:.2f} s, checkpoint of {size / 1e6:.0f} MB")
    return BakedFacts(
        image_key=engine.image_key(),
        guest_digest=guest_digest(),
        argv=spec.argv,
        env=dict(spec.env),
        python=greeting.python,
        kernel_problem=greeting.kernel_problem,
        created_at=datetime.now(UTC),
        boot_seconds=round(boot_seconds, 3),
        size_bytes=size,
    )


async def _wait_for_hello(reader: int) -> Greeting:
    frame_reader, assembler = frames.FrameReader(), frames.MessageAssembler()
    while data := await read_available(reader):
        for frame in frame_reader.feed(data):
            if frame.kind != frames.Kind.HELLO:
                continue
            document = assembler.add(frame)
            if document is None:
                continue
            try:
                greeting = msgspec.json.decode(document, type=Greeting, strict=True)
            except msgspec.MsgspecError as error:
                raise StepError(f"bad HELLO: {error}") from None
            if greeting.version != frames.VERSION:
                raise StepError(f"it speaks protocol {greeting.version}, this Cellbox {frames.VERSION}")
            return greeting
    raise StepError("it ended before it said hello")
