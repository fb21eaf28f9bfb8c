"""Recipes are read strictly, and their digest follows their content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellbox.errors import InvalidRequestError
from cellbox.templates.recipe import check_lock, check_name, read_recipe
from cellbox.templates.templates import RECIPES, builtin_names


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.toml").write_text(text)
    return folder


MINIMAL = 'name = "mine"\nbase = "base"\n'


def test_built_in_recipes_are_good() -> None:
    assert builtin_names() == ["base", "code-interpreter", "node", "polyglot"]
    for name in builtin_names():
        assert read_recipe(RECIPES / name).name == name


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('name = "mine"', "exactly one of"),
        (MINIMAL + 'debian = "trixie"', "exactly one of"),
        (MINIMAL + "bse = 1", "bse"),
        (MINIMAL + "[defaults]\nmemory = 1", "memory"),
        (MINIMAL + "[defaults]\nmemory_mb = 1", "memory_mb"),
        (MINIMAL + 'apt = ["-oDPkg::Pre-Invoke=id"]', "apt"),
        (MINIMAL + 'apt = ["git; id"]', "apt"),
        (MINIMAL + 'pip = ["--index-url=x"]', "pip"),
        (MINIMAL + 'pip = ["../evil"]', "pip"),
        (MINIMAL + 'pip = ["a @ http://example.org/a.whl"]', "pip"),
        (MINIMAL + 'pip = ["-r /etc/passwd"]', "pip"),
        (MINIMAL + 'pip = ["a"]\npip_lock = "lock"', "either"),
        (MINIMAL + 'pip_lock = "../lock"', "outside"),
        (MINIMAL + 'pip_lock = "none"', "does not exist"),
        (MINIMAL + "[env]\n\"A=B\" = 'x'", "env"),
        (MINIMAL + 'user = "a b"', "user"),
        ('name = "mine"\nrootfs = "/etc/passwd"', "outside"),
        ('name = "mine"\noci = "../.."', "outside"),
        ('name = "mine"\ndebian = "http://example.org"', "debian"),
        ('name = "mine"\nbase = "../../base"', "no template name"),
        ("not toml", "recipe.toml"),
    ],
)
def test_bad_recipe_is_refused_with_its_reason(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        read_recipe(write(tmp_path, text))


def test_missing_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no recipe"):
        read_recipe(tmp_path)


def test_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.tar").write_text("secret")
    folder = write(tmp_path / "recipe", 'name = "mine"\nrootfs = "root.tar"')
    (folder / "root.tar").symlink_to("../secret.tar")
    with pytest.raises(InvalidRequestError, match="outside"):
        read_recipe(folder)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".hidden", "a" * 65, "a b", "a\n", "ä", "a;id", "a\0"])
def test_name_that_is_no_plain_file_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_name(name)


@pytest.mark.parametrize(
    "line",
    [
        "--index-url x",
        "-e .",
        "requests",
        "requests>=2",
        "./wheel.whl",
        "a==1 --hash=md5:00",
        "a==1 --global-option=x",
        "-r other",
    ],
)
def test_lock_may_hold_exact_requirements_only(line: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_lock(f"good==1.0 \\\n    --hash=sha256:{'0' * 64}\n{line}\n")


def test_good_lock_passes() -> None:
    check_lock(f"# comment\n\ngood==1.0 \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{'1' * 64}\nb[x]==2\n")


def test_digest_follows_content_and_base_but_not_the_name(tmp_path: Path) -> None:
    one = read_recipe(write(tmp_path / "one", MINIMAL))
    two = read_recipe(write(tmp_path / "two", MINIMAL.replace("mine", "yours") + 'description = "other"\n'))
    assert one.digest("x") == two.digest("x")
    assert one.digest("x") != one.digest("y")
    assert len(one.digest("x")) == 64
    assert read_recipe(write(tmp_path / "two", MINIMAL + 'run = ["true"]\n')).digest("x") != one.digest("x")


def test_digest_sees_every_file_with_mode_and_link_target(tmp_path: Path) -> None:
    folder = write(tmp_path, MINIMAL)
    (folder / "files/etc").mkdir(parents=True)
    digests = [read_recipe(folder).digest("")]
    hidden = folder / "files/.env"
    hidden.write_text("A=1")
    digests.append(read_recipe(folder).digest(""))
    hidden.chmod(0o600)
    digests.append(read_recipe(folder).digest(""))
    hidden.write_text("A=2")
    digests.append(read_recipe(folder).digest(""))
    (folder / "files/etc/link").symlink_to("a")
    digests.append(read_recipe(folder).digest(""))
    (folder / "files/etc/link").unlink()
    (folder / "files/etc/link").symlink_to("b")
    digests.append(read_recipe(folder).digest(""))
    assert len(set(digests)) == len(digests)
    assert read_recipe(folder).digest("") == digests[-1]


def test_pipe_among_the_files_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, MINIMAL)
    (folder / "files").mkdir()
    os.mkfifo(folder / "files/pipe")
    with pytest.raises(InvalidRequestError, match="neither"):
        read_recipe(folder).digest("")
