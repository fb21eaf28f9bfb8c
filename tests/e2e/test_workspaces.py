"""Workspaces: what is in one outlives sandboxes, holds no more than it may, and leads nowhere else."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cellbox
from cellbox import errors

from .conftest import Daemon, traces_of

Create = Callable[..., cellbox.Sandbox]


@pytest.fixture(scope="module")
def workspace(client: cellbox.Client) -> Iterator[cellbox.Workspace]:
    """A small one that tests share; each has names of its own in it."""
    made = client.workspaces.create(f"shared-{uuid.uuid4().hex[:8]}", size_mb=32)
    yield made
    made.delete()


@pytest.fixture(scope="module")
def box(client: cellbox.Client, workspace: cellbox.Workspace) -> Iterator[cellbox.Sandbox]:
    with cellbox.Sandbox.create("base", ttl_seconds=600, workspace=workspace.name, client=client) as shared:
        yield shared


def test_content_outlives_its_sandbox(client: cellbox.Client, new_sandbox: Create) -> None:
    name = f"first-use.{uuid.uuid4().hex[:8]}"
    first = new_sandbox(template="base", workspace=name)
    assert first.info.workspace == name
    assert first.info.boot_mode == "snapshot"
    assert first.exec("pwd; echo kept > /workspace/note; echo gone > /root/note").stdout == "/workspace\n"
    workspace = client.workspaces.get(name)
    assert workspace.info.sandboxes == [first.id]
    with pytest.raises(errors.WorkspaceInUseError, match="kill"):
        workspace.delete()
    first.kill()
    assert workspace.refresh().sandboxes == []
    second = new_sandbox(template="base", workspace=name)
    assert second.exec("cat note; ls /root").stdout == "kept\n"
    second.kill()
    workspace.delete()
    with pytest.raises(errors.WorkspaceNotFoundError):
        client.workspaces.get(name)
    with pytest.raises(errors.WorkspaceNotFoundError):
        workspace.read("/note")


def test_files_are_reached_while_no_sandbox_runs(client: cellbox.Client) -> None:
    name = f"idle-{uuid.uuid4().hex[:8]}"
    workspace = client.workspaces.create(name, size_mb=64)
    assert name in [one.name for one in client.workspaces.list()]
    with pytest.raises(errors.WorkspaceExistsError):
        client.workspaces.create(name)
    sandboxes = {sandbox.id for sandbox in client.sandboxes.list()}
    odd = "/" + 'naïve "q" 😀\n'
    content = os.urandom(3_000_000)
    workspace.write("/sub/data.bin", content)
    workspace.write(odd, b"odd")
    workspace.append("/sub/data.bin", b"end")
    assert workspace.read("/sub/data.bin", offset=2_999_998) == content[-2:] + b"end"
    assert sorted(entry.path for entry in workspace.list(depth=2)) == sorted([odd, "/sub", "/sub/data.bin"])
    assert workspace.chmod("/sub/data.bin", 0o600).permissions == 0o600
    workspace.move("/sub/data.bin", "/moved")
    assert not workspace.exists("/sub/data.bin")
    archive = io.BytesIO()
    workspace.pack("/", archive)
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        assert sorted(tar.getnames()) == sorted([odd[1:], "moved", "sub"])
    assert {sandbox.id for sandbox in client.sandboxes.list()} == sandboxes
    workspace.delete()


def test_links_lead_nowhere_else(box: cellbox.Sandbox, workspace: cellbox.Workspace) -> None:
    box.exec(
        "mkdir links; cd links; echo in > target; ln -s target good; ln -s /etc/passwd host; ln -s ../../../../etc up;"
        " ln -s / root; ln -s loop loop; ln -s /links/target top",
        check=True,
    )
    assert workspace.read("/links/good") == b"in\n"
    assert workspace.read("/links/top") == b"in\n"  # the workspace's top is `/`
    for path in (
        "/links/host",
        "/links/up/passwd",
        "/links/root/etc/passwd",
        "/../etc/passwd",
        "/links/root/../proc/1",
    ):
        with pytest.raises(errors.PathNotFoundError):
            workspace.read(path)
    with pytest.raises(errors.PathConflictError):
        workspace.read("/links/loop")
    workspace.write("/links/up/planted", "x")
    assert box.exec("cat /workspace/etc/planted; ls /etc/planted 2>&1").stdout.startswith("x")
    workspace.remove("/links", recursive=True)
    assert workspace.stat("/etc/planted").size == 1


def test_a_workspace_holds_no_more_than_it_may(box: cellbox.Sandbox, workspace: cellbox.Workspace) -> None:
    if not workspace.info.is_enforced:
        assert any("not enforced" in text for text in box.info.limitations)
        return
    full = box.exec("dd if=/dev/zero of=/workspace/fill bs=1M count=64")
    assert full.exit_code == 1
    assert "No space left on device" in full.stderr
    assert box.exec("echo still > /tmp/x && cat /tmp/x").stdout == "still\n"
    with pytest.raises(errors.StorageFullError):
        workspace.write("/more", bytes(8_000_000))
    assert workspace.refresh().size_bytes <= 33 << 20
    assert box.exec("rm /workspace/fill; echo room > /workspace/room").exit_code == 0
    workspace.remove("/room")


def test_two_sandboxes_see_each_other(box: cellbox.Sandbox, workspace: cellbox.Workspace, new_sandbox: Create) -> None:
    other = new_sandbox(template="base", workspace=workspace.name)
    assert sorted(workspace.refresh().sandboxes) == sorted([box.id, other.id])
    for number in range(20):
        writer, reader = (box, other) if number % 2 else (other, box)
        writer.filesystem.write("/workspace/turn", str(number))
        assert reader.exec("cat /workspace/turn").stdout == str(number)
    loop = "for i in $(seq 200); do echo $0$i >> /workspace/log; done"
    commands = [sandbox.exec_stream(f"sh -c '{loop}' {word}") for sandbox, word in ((box, "a"), (other, "b"))]
    for command in commands:
        assert [event for event in command][-1].exit_code == 0  # noqa: C416 - a stream, not a list
    assert len(workspace.read_text("/log").splitlines()) == 400
    with box.filesystem.watch("/workspace") as watch:
        other.exec("echo x > /workspace/from-the-other")
        assert next(watch).path == "/workspace/from-the-other"
    workspace.remove("/log")


def test_a_read_only_volume_stays_so(client: cellbox.Client, workspace: cellbox.Workspace, new_sandbox: Create) -> None:
    workspace.write("/fixed", "as it was")
    reader = new_sandbox(
        template="base",
        volumes=[{"name": workspace.name, "read_only": True}],
        workspace=(own := f"own-{uuid.uuid4().hex[:8]}"),
    )
    place = f"/volumes/{workspace.name}"
    assert reader.info.volumes[0].read_only
    assert reader.exec(f"cat {place}/fixed; echo mine > /workspace/mine").stdout == "as it was"
    attempts = (
        f"echo no > {place}/fixed", f"rm {place}/fixed", f"mount -o remount,rw {place}", f"umount {place}",
        f"chmod 777 {place}", f"touch {place}/new", f"chown 1 {place}/fixed",
        f"ln -s x {place}/link",
    )  # fmt: skip
    for attempt in attempts:
        assert reader.exec(attempt).exit_code != 0, attempt
    assert workspace.read("/fixed") == b"as it was"
    reader.kill()
    client.workspaces.delete(own)


@pytest.mark.parametrize(
    "options",
    [
        {"workspace": "../x"},
        {"workspace": "a/b"},
        {"workspace": "x" * 65},
        {"volumes": [{"name": "never-made"}]},
        {"volumes": [{"name": "SHARED", "path": "relative"}]},
        {"volumes": [{"name": "SHARED", "path": "/a/../.."}]},
        {"volumes": [{"name": "SHARED", "path": "/proc/x"}]},
        {"volumes": [{"name": "SHARED", "path": "/"}]},
        {"volumes": [{"name": "SHARED"}, {"name": "SHARED"}]},
        {"workspace": "SHARED", "volumes": [{"name": "SHARED"}]},
    ],
    ids=str,
)
def test_mounts_that_make_no_sense_are_refused(
    client: cellbox.Client, workspace: cellbox.Workspace, options: dict[str, object]
) -> None:
    text = repr(options).replace("SHARED", workspace.name)
    with pytest.raises(errors.InvalidRequestError):
        cellbox.Sandbox.create("base", client=client, **eval(text))
    assert ".." not in [one.name for one in client.workspaces.list()]


def test_another_owner_sees_nothing(daemon: Daemon, client: cellbox.Client, workspace: cellbox.Workspace) -> None:
    token = client.tokens.create("other", owner=f"other-{uuid.uuid4().hex[:8]}").token
    with daemon.client(token) as other:
        assert other.workspaces.list() == []
        with pytest.raises(errors.WorkspaceNotFoundError):
            other.workspaces.get(workspace.name)
        with pytest.raises(errors.InvalidRequestError, match="not found"):
            cellbox.Sandbox.create("base", client=other, volumes=[{"name": workspace.name}])
        own = other.workspaces.create(workspace.name, size_mb=16)  # a name of its own
        own.write("/mine", "mine")
        assert not workspace.exists("/mine")
        own.delete()


def test_content_survives_a_crash_of_the_daemon(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "d")
    daemon.start()
    try:
        with daemon.client() as client:
            cellbox.Sandbox.create("base", client=client, workspace="kept").exec("echo here > f; sync", check=True)
            daemon.kill()
        daemon.start()
        assert traces_of(daemon) == []
        with daemon.client() as client:
            workspace = client.workspaces.get("kept")
            assert workspace.info.sandboxes == []
            assert workspace.read("/f") == b"here\n"
            workspace.delete()
        daemon.stop()
        assert not list((daemon.data_dir / "workspaces").iterdir())
    finally:
        with contextlib.suppress(ProcessLookupError):
            daemon.kill()


def test_the_command_line(daemon: Daemon, workspace: cellbox.Workspace, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cellbox.cli", *arguments],
            env={**os.environ, "CELLBOX_API_URL": daemon.url, "CELLBOX_API_KEY": daemon.admin_key},
            capture_output=True,
            text=True,
            check=False,
        )

    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("text")
    assert run("workspace", "cp", str(tmp_path / "in"), f"{workspace.name}:/cli/").returncode == 0
    assert "a.txt" in run("workspace", "ls", f"{workspace.name}:/cli/in").stdout
    assert run("workspace", "cp", f"{workspace.name}:/cli/in/a.txt", "-").stdout == "text"
    assert run("workspace", "rm", "never-made").returncode == 3
