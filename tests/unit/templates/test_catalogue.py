"""Names lead to contents; contents are whole or not there."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from cellbox.errors import TemplateNotFoundError, UnknownTemplateError
from cellbox.templates.catalogue import Catalogue, Label, Manifest
from cellbox.templates.recipe import Defaults


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(tmp_path / "templates")


def add(catalogue: Catalogue, digest: str, *names: str) -> None:
    built = catalogue.new_directory()
    (built / "rootfs").mkdir()
    manifest = Manifest(
        digest=digest, base_digest="", suite="trixie", python="3.13", env={"A": "1"}, user="", start_command="",
        defaults=Defaults(memory_mb=256), created_at=datetime.now(UTC), build_seconds=1.0, size_bytes=1, files=1,
        packages={},
    )  # fmt: skip
    catalogue.add(built, manifest)
    for name in names:
        catalogue.point(name, Label(digest=digest))


ONE, TWO = "1" * 64, "2" * 64


def test_template_is_found_by_name_and_alias(catalogue: Catalogue) -> None:
    add(catalogue, ONE, "code-interpreter")
    template = catalogue.resolve("python")
    assert (template.name, template.digest, template.memory_mb) == ("code-interpreter", ONE, 256)
    assert template.rootfs.is_dir()


def test_own_name_wins_over_alias(catalogue: Catalogue) -> None:
    add(catalogue, ONE, "code-interpreter")
    add(catalogue, TWO, "python")
    assert catalogue.resolve("python").digest == TWO


def test_unknown_template_tells_what_there_is_and_how_to_build(catalogue: Catalogue) -> None:
    with pytest.raises(UnknownTemplateError, match=r"none is built yet.*cellbox template build code-interpreter"):
        catalogue.resolve("python")
    add(catalogue, ONE, "a", "b")
    with pytest.raises(UnknownTemplateError, match="there are a, b"):
        catalogue.resolve("c")


@pytest.mark.parametrize("name", ["../names/a", "..", ".", "", "/etc/passwd", "a\0b", ".a", "x" * 1000])
def test_hostile_name_is_just_unknown(catalogue: Catalogue, name: str) -> None:
    add(catalogue, ONE, "a")
    with pytest.raises(UnknownTemplateError):
        catalogue.resolve(name)
    with pytest.raises(TemplateNotFoundError):
        catalogue.remove(name)


def test_name_moves_on_and_old_content_becomes_unused(catalogue: Catalogue) -> None:
    add(catalogue, ONE, "a", "b")
    add(catalogue, TWO, "a")
    assert catalogue.resolve("a").digest == TWO
    assert catalogue.unused(()) == []
    catalogue.remove("b")
    assert catalogue.unused(()) == [ONE]
    assert catalogue.unused([ONE]) == []


def test_content_without_manifest_is_not_there(catalogue: Catalogue) -> None:
    add(catalogue, ONE, "a")
    (catalogue.directory(ONE) / "manifest.json").unlink()
    assert Catalogue(catalogue.root).list() == []


def test_list_is_sorted(catalogue: Catalogue) -> None:
    add(catalogue, ONE, "b", "a", "c")
    assert [template.name for template in catalogue.list()] == ["a", "b", "c"]
