"""Uploads of recipes: the form, and that nothing in it can leave its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pandastack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellbox.control.builds import Builds
from cellbox.control.tasks import Tasks
from cellbox.errors import InvalidRequestError
from cellbox.server.multipart import read_form
from cellbox.templates import events

RECIPE = b'name = "mine"\nbase = "base"\n'


class RecordingTemplates:
    """Notes what it was given to build."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.deleted: list[str] = []

    def list(self) -> list[Any]:
        return []

    async def delete(self, name: str, *, in_use: Any) -> None:
        self.deleted.append(name)

    async def build(self, source: Path, *, name: str, replace: bool) -> Any:
        self.files = {str(file.relative_to(source)): file.read_bytes() for file in source.rglob("*") if file.is_file()}
        yield events.StepLog(template=name, step="s", line="héllo\u2028there")
        yield events.BuildDone(template=name, digest="d", seconds=0, was_built=True)


@pytest.fixture
def templates(server: Any, tmp_path: Path) -> RecordingTemplates:
    templates = RecordingTemplates()
    tasks = Tasks()

    def install() -> None:
        server.control.templates = templates
        server.control.builds = Builds(templates, tmp_path, tasks)  # type: ignore[arg-type]

    server.call(install)
    return templates


@pytest.fixture
def client(server: Any, templates: RecordingTemplates) -> Any:
    with server.client() as client:
        yield client


def upload(client: httpx2.Client, files: dict[str, bytes], **fields: str) -> httpx2.Response:
    return client.post("/v1/templates/build", data=fields, files=[(name, (name, data)) for name, data in files.items()])


def wait_for(client: httpx2.Client, build: httpx2.Response) -> list[Any]:
    assert build.status_code == 202, build.text
    text = client.get(f"/v1/templates/builds/{build.json()['id']}/logs?follow=1").text
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]


def test_a_recipe_and_its_files(client: httpx2.Client, templates: RecordingTemplates) -> None:
    files = {
        "recipe.toml": RECIPE,
        "files/etc/a b.conf": b"\r\n--x",
        "files/ä": b"",
        "wheels/w.whl": bytes(range(256)) * 999,
    }
    *lines, last = wait_for(client, upload(client, files, name="mine", replace="true"))
    assert templates.files == files
    assert lines[-1]["line"] == "héllo\u2028there"
    assert last["build"]["status"] == "done"
    assert client.get("/v1/templates/builds").json()[0] == last["build"]
    assert client.get(f"/v1/templates/builds/{last['build']['id']}").json() == last["build"]


def test_the_pandastack_client_builds_from_a_rootfs(
    server: Any, client: httpx2.Client, templates: RecordingTemplates, tmp_path: Path
) -> None:
    tar = tmp_path / "root.tar.gz"
    tar.write_bytes(b"\x1f\x8b" + b"tar" * 100_000)
    panda = server.pandastack()
    build = panda.templates.build("mine", rootfs_tar=str(tar), size_mb=2048, poll_interval=0.05)
    assert build.status == "done"
    assert templates.files["rootfs.tar"] == tar.read_bytes()
    assert b"disk_mb = 2048" in templates.files["recipe.toml"]
    assert list(panda.templates.build_logs(build.id)) == ["héllo there"]
    assert panda.templates.get_build(build.id).is_done
    assert len(panda.templates.builds()) == 1


def test_what_can_not_be_built_is_said_clearly(server: Any, client: httpx2.Client) -> None:
    panda = server.pandastack()
    with pytest.raises(pandastack.exceptions.BadRequestError, match="images can't be pulled"):
        panda.templates.register("mine", "registry/x")
    with pytest.raises(pandastack.exceptions.ServerError, match="Dockerfiles can't be built"):
        panda.templates.build_from_dockerfile("mine", "FROM scratch")
    assert upload(client, {}, name="mine").status_code == 400
    assert upload(client, {"files/x": b""}).status_code == 400
    assert upload(client, {"recipe.toml": RECIPE}, surprise="x").status_code == 400
    assert upload(client, {"recipe.toml": b"name = 1"}).status_code == 400
    assert upload(client, {"recipe.toml": RECIPE}, name="../x").status_code == 400
    assert upload(client, {"rootfs": b""}, name="x", cpu="many").status_code == 400


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "/etc/x", "a//b", "./a", "a\\b", "a/", "a" * 300, "/".join("a" * 40), "recipe.toml/x", ".."],
)
def test_names_that_would_leave_the_folder_are_refused(
    client: httpx2.Client, templates: RecordingTemplates, tmp_path: Path, name: str
) -> None:
    answer = upload(client, {"recipe.toml": RECIPE, name: b"evil"})
    assert answer.status_code == 400, answer.text
    assert templates.files == {}
    assert list((tmp_path / "uploads").iterdir()) == []


def test_the_catalogue(client: httpx2.Client, templates: RecordingTemplates) -> None:
    rows = {row["name"]: row for row in client.get("/v1/templates").json()}
    assert rows["code-interpreter"]["is_built"] is False
    assert "python" in rows["code-interpreter"]["aliases"]
    assert client.get("/v1/templates/python").json()["name"] == "code-interpreter"
    assert client.get("/v1/templates/nope").status_code == 404
    assert client.delete("/v1/templates/base").status_code == 403
    assert client.delete("/v1/templates/mine").status_code == 204
    assert templates.deleted == ["mine"]


class Buffer(bytearray):
    def write(self, data: bytes) -> None:
        self.extend(data)

    def close(self) -> None:
        pass


async def read_pieces(body: bytes, size: int) -> tuple[dict[str, str], dict[str, bytes]]:
    files: dict[str, Buffer] = {}

    async def pieces() -> Any:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    fields = await read_form(pieces(), b"BOUND", lambda name, _: files.setdefault(name, Buffer()))
    return fields, {name: bytes(data) for name, data in files.items()}


@given(
    content=st.binary(max_size=200) | st.lists(st.sampled_from([b"\r\n", b"--", b"BOUND", b"x", b"\r"])).map(b"".join),
    size=st.integers(1, 300),
)
def test_a_form_reads_the_same_however_it_is_cut(content: bytes, size: int) -> None:
    import asyncio

    if b"\r\n--BOUND" in b"\r\n" + content:
        return
    body = (
        b"preamble\r\n--BOUND  \r\nContent-Disposition: form-data; name=f; filename=\"x\"\r\n\r\n" + content
        + b"\r\n--BOUND\r\nX: y\r\ncontent-disposition: form-data; name=\"a b\"\r\n\r\nv\xc3\xa9"
        + b"\r\n--BOUND--\r\nepilogue"
    )  # fmt: skip
    assert asyncio.run(read_pieces(body, size)) == ({"a b": "vé"}, {"f": content})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--BOUND",
        b"--BOUND\r\n",
        b"--BOUND\r\n\r\n\r\n--BOUND--",
        b"--BOUNDx\r\n\r\n",
        b"--BOUND\r\n" + b"x" * 20_000,
    ],
)
async def test_broken_forms_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        await read_pieces(body, 7)
