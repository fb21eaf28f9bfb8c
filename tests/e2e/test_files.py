# ruff: noqa: E501 - tables and programs
"""Files: every name, every kind, every way to ask for what is not there; and sizes that no memory holds."""

from __future__ import annotations

import contextlib
import http.client
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

import cellbox
from cellbox import errors

from .conftest import Daemon


@pytest.fixture(scope="module")
def box(client: cellbox.Client) -> Iterator[cellbox.Sandbox]:
    with cellbox.Sandbox.create("base", ttl_seconds=600, disk_mb=2048, client=client) as shared:
        yield shared


@pytest.fixture(scope="module")
def files(box: cellbox.Sandbox) -> cellbox.Filesystem:
    return box.filesystem


@pytest.fixture(scope="module")
def raw(daemon: Daemon, box: cellbox.Sandbox) -> Callable[..., tuple[int, dict[str, str], bytes]]:
    """Speak HTTP without the SDK, as any other client would. `path` goes into the query as it is."""

    def ask(
        path: str, *, method: str = "GET", route: str = "fs", body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        address = urlsplit(daemon.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
        target = f"/v1/sandboxes/{box.id}/{route}?path={path}"
        connection.request(method, target, body, {"Authorization": f"Bearer {daemon.admin_key}", **headers})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content

    return ask


NAMES: list[bytes] = [
    name if isinstance(name, bytes) else name.encode()
    for name in [
        "报告 2024.csv", 'naïve "q".txt', "a;b=c.txt", "emoji😀.png", "new\nline", "cr\r\nlf", "-lead", ".dot", "%2F", "%00",
        "trail ", "e\u0301", "\u00e9", "x" * 255, b"bad\xff\xfename", "tab\t", "\\back\\..\\x", "a?b#c&d=e+f", "\u202ertl",
        "\x1b[31m", "...", "CON", "x.html", "\u2028",
    ]
]  # fmt: skip


def test_every_name_goes_there_and_back(
    files: cellbox.Filesystem, raw: Callable[..., tuple[int, dict[str, str], bytes]]
) -> None:
    for name in NAMES:
        path, content = b"/tmp/names/" + name, os.urandom(9)
        files.write(path, content)
        assert files.read(path) == content
        assert os.fsencode(files.stat(path).name) == name
        status, headers, body = raw(quote(path))
        assert (status, body) == (200, content)
        assert headers["content-disposition"].startswith("attachment; filename=")
        assert (headers["x-content-type-options"], headers["content-security-policy"]) == ("nosniff", "sandbox")
    assert sorted(os.fsencode(entry.name) for entry in files.list("/tmp/names")) == sorted(NAMES)
    ((_, folders, found),) = files.walk("/tmp/names")
    assert (len(folders), len(found)) == (0, len(NAMES))
    files.move(b"/tmp/names/bad\xff\xfename", "/tmp/names/good")
    assert files.exists("/tmp/names/good")


REFUSALS: list[tuple[str, type[Exception], Callable[[cellbox.Filesystem], object]]] = [
    ("read what is not there", FileNotFoundError, lambda files: files.read("/nope")),
    ("look at what is not there", FileNotFoundError, lambda files: files.stat("/nope")),
    ("list what is not there", FileNotFoundError, lambda files: files.list("/nope")),
    ("move what is not there", FileNotFoundError, lambda files: files.move("/nope", "/tmp/x")),
    ("remove what is not there", FileNotFoundError, lambda files: files.remove("/nope")),
    ("read a directory", errors.PathConflictError, lambda files: files.read("/tmp")),
    ("write over a directory", errors.PathConflictError, lambda files: files.write("/tmp", "x")),
    ("list a file", errors.PathConflictError, lambda files: files.list("/etc/passwd")),
    ("make a directory over a file", errors.PathConflictError, lambda files: files.mkdir("/etc/passwd")),
    ("write below a file", errors.PathConflictError, lambda files: files.write("/etc/passwd/x", "x")),
    ("remove a full directory", errors.PathConflictError, lambda files: files.remove("/etc")),
    ("remove the root", errors.InvalidRequestError, lambda files: files.remove("/", recursive=True)),
    ("move into itself", errors.InvalidRequestError, lambda files: files.move("/etc", "/etc/x")),
    ("read a loop of links", errors.PathConflictError, lambda files: files.read("/tmp/special/loop")),
    ("list a loop of links", errors.PathConflictError, lambda files: files.list("/tmp/special/loop")),
    ("write to a loop of links", errors.PathConflictError, lambda files: files.write("/tmp/special/loop", "x")),
    ("follow 41 links", errors.PathConflictError, lambda files: files.read("/tmp/special/41")),
    ("read a FIFO", errors.PathConflictError, lambda files: files.read("/tmp/special/fifo")),
    ("write to a FIFO", errors.PathConflictError, lambda files: files.write("/tmp/special/fifo", "x")),
    ("append to a FIFO", errors.PathConflictError, lambda files: files.append("/tmp/special/fifo", "x")),
    ("read a socket", errors.PathConflictError, lambda files: files.read("/tmp/special/socket")),
    ("read a device", errors.PathConflictError, lambda files: files.read("/dev/zero")),
    ("write to a device", errors.PathConflictError, lambda files: files.write("/dev/full", "x")),
    ("read memory", errors.PermissionDeniedError, lambda files: files.read("/proc/1/mem", length=10)),
    ("change a setting", errors.PermissionDeniedError, lambda files: files.write("/proc/sys/kernel/core_pattern", "x")),
    ("write where the user may not", errors.PermissionDeniedError, lambda files: files.write("/root/x", "x", user="nobody")),
    ("append where the user may not", errors.PermissionDeniedError, lambda files: files.append("/etc/passwd", "x", user="1234")),
    ("write through a stranger's link", errors.PermissionDeniedError, lambda files: files.write("/tmp/special/passwd", "x", user="nobody")),
    ("a name of 256 bytes", errors.InvalidRequestError, lambda files: files.write("/tmp/" + "x" * 256, "x")),
    ("a path of 5000 bytes", errors.InvalidRequestError, lambda files: files.read("/x" * 2500)),
    ("a NUL", errors.InvalidRequestError, lambda files: files.read("/etc/passwd\0")),
    ("a relative path", errors.InvalidRequestError, lambda files: files.read("etc/passwd")),
    ("no path", errors.InvalidRequestError, lambda files: files.read("")),
]  # fmt: skip


@pytest.fixture(scope="module")
def special(box: cellbox.Sandbox) -> None:
    result = box.exec(
        "mkdir /tmp/special; cd /tmp/special; ln -s l2 loop; ln -s loop l2; mkfifo fifo; ln -s /etc/passwd passwd;"
        "ln -s /etc/passwd 1; for n in $(seq 2 41); do ln -s $((n - 1)) $n; done;"
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'"
    )
    assert result.exit_code == 0, result.stderr


@pytest.mark.usefixtures("special")
@pytest.mark.parametrize(("kind", "attempt"), [case[1:] for case in REFUSALS], ids=[case[0] for case in REFUSALS])
def test_refusals_are_typed_and_quick(
    files: cellbox.Filesystem, kind: type[Exception], attempt: Callable[[cellbox.Filesystem], object]
) -> None:
    started = time.monotonic()
    with pytest.raises(kind):
        attempt(files)
    assert time.monotonic() - started < 1


def test_paths_mean_files_of_the_sandbox_however_they_are_spelled(
    daemon: Daemon, tmp_path: Path, raw: Callable[..., tuple[int, dict[str, str], bytes]]
) -> None:
    canary = os.urandom(16).hex()
    (tmp_path / "canary").write_text(canary)
    host = str(tmp_path / "canary").lstrip("/")
    ups = ["../" * n for n in (1, 3, 12, 60)]
    dots = [
        "%2e%2e/",
        "%2e%2e%2f",
        "..%2f",
        "..%252f",
        "%252e%252e/",
        "..%5c",
        "..\\",
        "....//",
        "..;/",
        ";./",
        "./.././",
    ]
    dots += ["%c0%ae%c0%ae/", "..%c0%af", "%uff0e%uff0e/", "..%00/", "%ff../", "..//", "/./..//"]
    for up in [*ups, *(dot * 12 for dot in dots)]:
        for start in ("/", "//", "/workspace/", "/proc/1/root/", "/proc/self/cwd/", "", "file://"):
            for method, route in (
                ("GET", "fs"),
                ("GET", "fs/stat"),
                ("GET", "fs/dir"),
                ("DELETE", "fs"),
                ("PUT", "fs"),
            ):
                if start in {"", "file://"} and method == "GET":
                    continue  # the other methods speak for these
                target = f"{start}{up}{host}/x" if method == "PUT" else f"{start}{up}{host}"
                status, _, body = raw(target, method=method, route=route, body=b"x" if method == "PUT" else None)
                assert status < 500, (target, method, route, body)
                assert canary.encode() not in body
    assert (tmp_path / "canary").read_text() == canary


@pytest.mark.usefixtures("special")
def test_links_are_resolved_in_the_sandbox_even_while_they_flip(
    box: cellbox.Sandbox, files: cellbox.Filesystem, tmp_path: Path
) -> None:
    (tmp_path / "canary").write_text("host")
    inside = str(tmp_path)
    files.write(f"{inside}/canary", "guest")
    box.exec(f"ln -s / /tmp/to-root; ln -s {inside} /tmp/to-dir; ln -s /nowhere /tmp/dangling; mkdir -p /tmp/d1")
    assert files.read("/tmp/to-root/etc/passwd") == files.read("/etc/passwd")
    files.write("/tmp/to-dir/new/dir/file", "x")
    assert files.read_text(f"{inside}/new/dir/file") == "x"
    assert not (tmp_path / "new").exists()
    files.write("/tmp/dangling", "made")
    assert files.read_text("/nowhere") == "made"
    flip = "import os\nwhile True:\n os.symlink('%s', 'l'); os.rename('l', 'flip'); os.unlink('flip'); os.mkdir('flip'); os.rmdir('flip')"
    box.exec(f'cd /tmp; nohup python3 -c "{flip % inside}" >/dev/null 2>&1 &')
    for _ in range(150):
        for attempt in (lambda: files.write("/tmp/flip/canary", "api"), lambda: files.read("/tmp/flip/canary")):
            with contextlib.suppress(errors.NotFoundError, errors.ConflictError):
                attempt()
    box.exec("pkill python3")
    assert (tmp_path / "canary").read_text() == "host"


def test_owners_and_modes(box: cellbox.Sandbox, files: cellbox.Filesystem) -> None:
    files.mkdir("/tmp")
    assert files.stat("/tmp").permissions == 0o1777, "a directory that is there is left as it is"
    files.write("/tmp/own", "x", user="nobody", mode=0o640)
    assert (files.stat("/tmp/own").uid, files.stat("/tmp/own").permissions) == (65534, 0o640)
    assert box.exec("cat /tmp/own && echo y > /tmp/own && rm /tmp/own", user="nobody").stdout == "x"
    files.write("/tmp/script", "#!/bin/sh\necho ran", mode=0o755)
    files.write("/tmp/script", "#!/bin/sh\necho again")
    assert box.exec("/tmp/script").stdout == "again\n", "a replaced file keeps its mode"
    box.exec("install -o nobody -m 600 /dev/null /tmp/theirs")
    files.write("/tmp/theirs", "new")
    assert (files.stat("/tmp/theirs").uid, files.stat("/tmp/theirs").permissions) == (65534, 0o600)


@pytest.mark.parametrize(
    ("asked", "status", "content"),
    [
        ("bytes=0-9", 206, bytes(range(10))), ("bytes=90-", 206, bytes(range(90, 100))), ("bytes=-5", 206, bytes(range(95, 100))),
        ("bytes=-999", 206, bytes(range(100))), ("bytes=99-99999999999", 206, b"c"), ("bytes=100-", 416, None),
        ("bytes=-0", 416, None), ("bytes=9223372036854775807-", 416, None), ("bytes=5-2", 200, bytes(range(100))),
        ("bytes=0-0,2-3", 200, bytes(range(100))), ("bytes=x", 200, bytes(range(100))), ("lines=1-2", 200, bytes(range(100))),
        ("bytes=0-" + "9" * 50, 200, bytes(range(100))),
    ],
)  # fmt: skip
def test_ranges(
    files: cellbox.Filesystem,
    raw: Callable[..., tuple[int, dict[str, str], bytes]],
    asked: str,
    status: int,
    content: bytes | None,
) -> None:
    files.write("/tmp/hundred", bytes(range(100)))
    answer = raw("/tmp/hundred", Range=asked)
    assert answer[0] == status
    assert content is None or answer[2] == content
