"""Every HTTP operation has a handler, a method in both clients and a place in the documents."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from cellbox.protocol.file_operations import FileOperations
from cellbox.protocol.operations import OPERATIONS, SANDBOX_FILES, WORKSPACE_FILES
from cellbox.server.routes import all_routes

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "cellbox"
FILE_FIELDS = [field.name for field in fields(FileOperations)]


def names_used_in(folder: Path) -> set[str]:
    text = "\n".join(path.read_text() for path in folder.rglob("*.py"))
    names = set(re.findall(r"\b(?:operations|ops)\.([a-z_]+)\b", text))
    called = {field for field in FILE_FIELDS if f"self._operations.{field}" in text}
    return names | {getattr(table, field).name for table in (SANDBOX_FILES, WORKSPACE_FILES) for field in called}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_has_a_handler(name: str) -> None:
    assert name in {route.operation.name for route in all_routes()}


NOT_IN_THE_SDK = {"run_once", "run_commands"}
"""Kept for other clients of this wire: `exec` and a code context do the same and more."""


@pytest.mark.parametrize("side", ["_async", "_sync"])
@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - NOT_IN_THE_SDK))
def test_operation_is_called_by_the_sdk(name: str, side: str) -> None:
    assert name in names_used_in(SOURCE / "client" / side)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_has_a_heading_in_the_http_reference(name: str) -> None:
    operation = OPERATIONS[name]
    assert f"### `{operation.method} /v1{operation.path}`" in (ROOT / "docs" / "http.md").read_text()


def test_no_two_operations_share_a_route() -> None:
    routes = [(operation.method, operation.path) for operation in OPERATIONS.values()]
    assert len(routes) == len(set(routes))


@pytest.mark.parametrize("name", OPERATIONS)
def test_path_and_placeholders_are_well_formed(name: str) -> None:
    operation = OPERATIONS[name]
    assert re.fullmatch(r"(/[a-z-]+|/\{[a-z_]+\})+", operation.path)
    assert operation.summary.endswith(".")
