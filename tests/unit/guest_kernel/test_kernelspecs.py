"""Which kernelspecs are found, which one is meant, and what a bridge types for a cell."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from cellbox.guest.kernel import kernelspecs
from cellbox.guest.kernel.dialects import dialect_for


def make(folder: Path, name: str, **fields: object) -> None:
    directory = folder / "kernels" / name
    directory.mkdir(parents=True)
    (directory / "kernel.json").write_text(json.dumps({"argv": ["x", "{connection_file}"], **fields}))


def find(folder: Path) -> list[kernelspecs.Kernelspec]:
    specs = kernelspecs.find({"JUPYTER_PATH": str(folder), "HOME": "/nonexistent", "PATH": "/nonexistent"})
    return [spec for spec in specs if spec.directory.startswith(str(folder))]


def test_a_kernelspec_is_meant_by_name_or_language_in_any_case(tmp_path):
    make(tmp_path, "IR", language="R")
    make(tmp_path, "deno", language="typescript", env={"A": 1}, interrupt_mode="message")
    make(tmp_path, "python3", language="python")
    specs = find(tmp_path)
    assert [spec.name for spec in specs] == ["ir", "deno"]
    assert kernelspecs.names(specs) == ["r", "typescript"]
    for wanted, name in (("r", "ir"), ("IR", "ir"), ("TypeScript", "deno"), ("ts", "deno"), ("Deno ", "deno")):
        chosen = kernelspecs.choose(specs, wanted)
        assert chosen is not None
        assert chosen.name == name
    assert kernelspecs.choose(specs, "python") is None
    assert specs[1].env == {"A": "1"}
    assert [spec.interrupt_mode for spec in specs] == ["signal", "message"]


def test_a_second_kernel_of_a_language_is_listed_by_its_name(tmp_path):
    make(tmp_path, "a-js", language="javascript")
    make(tmp_path, "b-js", language="javascript")
    assert kernelspecs.names(find(tmp_path)) == ["b-js", "javascript"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"argv": []}', '{"argv": 1}', '{"argv": ["x"], "env": 3}', "[" * 60000]
)
def test_what_is_no_kernelspec_is_passed_over(tmp_path, text):
    make(tmp_path, "good", language="good")
    (tmp_path / "kernels/bad").mkdir()
    (tmp_path / "kernels/bad/kernel.json").write_text(text)
    assert [spec.name for spec in find(tmp_path)] == ["good"]


def test_a_pipe_in_the_place_of_a_kernelspec_holds_nobody_up(tmp_path):
    (tmp_path / "kernels/bad").mkdir(parents=True)
    os.mkfifo(tmp_path / "kernels/bad/kernel.json")
    assert find(tmp_path) == []


@pytest.mark.parametrize("value", ["", "plain", "a 'b' \"c\" !d $e `f`", "tab\tline\nend\\", "ü\x01\x7f€"])
def test_variables_of_a_bash_cell_arrive_as_they_are(tmp_path, value):
    dialect = dialect_for("bash", str(tmp_path))
    line = dialect.code('printf "%s" "$ONCE"', {"ONCE": value})
    assert all(sign.isprintable() for sign in line)
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True, env={"LANG": "C.UTF-8"})
    assert done.stdout.decode() == value
    assert dialect.ended() == 0
    assert dialect.ended() is None


def test_a_bash_variable_has_a_name(tmp_path):
    with pytest.raises(ValueError, match="name of a variable"):
        dialect_for("bash", str(tmp_path)).code("true", {"a b": "1"})


def test_an_unknown_language_refuses_variables_of_one_cell(tmp_path):
    assert dialect_for("cobol", str(tmp_path)).code("x", {}) == "x"
    with pytest.raises(ValueError, match="context instead"):
        dialect_for("cobol", str(tmp_path)).code("x", {"A": "1"})
