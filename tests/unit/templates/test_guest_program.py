"""The guest is one file, the same for the same sources, and holds nothing but the guest."""

from __future__ import annotations

import io
import zipfile

from cellbox.templates.guest_program import GUEST_ENV, guest_argv, guest_path, guest_program, machine_env


def test_archive_is_the_same_every_time() -> None:
    first = guest_program()
    guest_program.cache_clear()
    assert guest_program() == first


def test_archive_holds_wire_and_guest_and_an_empty_package() -> None:
    with zipfile.ZipFile(io.BytesIO(guest_program())) as archive:
        names = archive.namelist()
        assert archive.read("cellbox/__init__.py") == b""
    assert {"__main__.py", "cellbox/guest/agent.py", "cellbox/wire/frames.py", "cellbox/_version.py"} <= set(names)
    assert all(name.startswith(("cellbox/guest/", "cellbox/wire/", "cellbox/_", "__main__")) for name in names)
    assert not any("__pycache__" in name for name in names)


def test_command_line_names_the_loader_and_the_versioned_archive() -> None:
    assert guest_argv()[0] == "/.cellbox/runtime/lib/ld.so"
    assert guest_argv()[-1] == guest_path()


def test_template_environment_lies_over_ours() -> None:
    assert machine_env({"LANG": "de_DE", "X": "1"}) == {**GUEST_ENV, "LANG": "de_DE", "X": "1"}
