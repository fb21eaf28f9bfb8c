"""Writes the lock files: exact versions with the hashes of every wheel that any supported target would take.

    make lock                      all of them, at the newest versions allowed
    python tools/lock.py NAME…     only these (`requirements`, `requirements-test`, …, or a template or framework)

pip itself resolves, with this machine's own configuration; no address of an index gets into a lock.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECIPES = ROOT / "src/cellbox/templates/recipes"
FRAMEWORKS = ROOT / "tests/frameworks"
MACHINES = ("x86_64", "aarch64")
HOST_PYTHONS = ("3.11", "3.12", "3.13", "3.14")
GLIBC_MINORS = {"host": (*range(36, 23, -1), 17, 12, 5), "template": (*range(41, 23, -1), 17, 12, 5)}
BUILD = ("hatchling>=1.27", "editables>=0.5")
"""What `pip install --no-build-isolation -e .` needs beside the dependencies."""


@dataclass(frozen=True, kw_only=True)
class Lock:
    """One lock file and what goes into it."""

    path: Path
    requirements: tuple[str, ...]
    pythons: tuple[str, ...]
    kind: str
    has_dependencies: bool = True


def locks() -> dict[str, Lock]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    server = (*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["server"], *BUILD)
    test, check, demo = (tuple(group(project, name)) for name in ("test", "check", "demo"))
    wanted = {
        "requirements": server,
        "requirements-demo": demo,
        "requirements-test": (*server, *test),
        "requirements-check": (*server, *test, *check),
    }
    found = {
        name: Lock(
            path=ROOT / f"{name}.lock",
            requirements=listed,
            pythons=HOST_PYTHONS,
            kind="host",
            has_dependencies=listed is not demo,
        )
        for name, listed in wanted.items()
    }
    for source in sorted(RECIPES.glob("*/requirements.in")):
        recipe = tomllib.loads((source.parent / "recipe.toml").read_text())
        found[recipe["name"]] = Lock(
            path=source.parent / recipe["pip_lock"],
            requirements=listed_in(source),
            pythons=(recipe["python"],),
            kind="template",
        )
    for source in sorted(FRAMEWORKS.glob("*/requirements.in")):
        found[source.parent.name] = Lock(
            path=source.parent / "requirements.lock",
            requirements=(*project["project"]["dependencies"], *group(project, "framework"), *listed_in(source)),
            pythons=HOST_PYTHONS,
            kind="host",
        )
    return found


def listed_in(source: Path) -> tuple[str, ...]:
    """The requirements in a `requirements.in`."""
    lines = (line.split("#")[0].strip() for line in source.read_text().splitlines())
    return tuple(filter(None, lines))


def group(project: dict[str, Any], name: str) -> Iterator[str]:
    """The requirements of a dependency group and of those that it includes."""
    for item in project["dependency-groups"][name]:
        if isinstance(item, str):
            yield item
        else:
            yield from group(project, item["include-group"])


def main() -> None:
    found = locks()
    for name in sys.argv[1:] or found:
        if name not in found:
            sys.exit(f"no lock {name!r}; there are {', '.join(found)}")
        write(name, found[name])


def write(name: str, lock: Lock) -> None:
    print(f"{name}: resolving {len(lock.requirements)} requirements", flush=True)
    options = () if lock.has_dependencies else ("--no-deps",)
    pinned: dict[str, str] = {}
    for python in lock.pythons:  # a marker may ask for more on one Python than on another
        for item in resolve(lock.requirements, python, MACHINES[0], lock.kind, *options):
            package, version = normalize(item["metadata"]["name"]), item["metadata"]["version"]
            if pinned.setdefault(package, version) != version:
                pinned[package] = min(pinned[package], version)
    exact = [f"{package}=={version}" for package, version in sorted(pinned.items())]
    hashes: dict[str, set[str]] = defaultdict(set)
    for python in lock.pythons:
        for machine in MACHINES:
            collect_hashes(exact, python, machine, lock.kind, hashes)
    if missing := [requirement for requirement in exact if not hashes[requirement]]:
        sys.exit(f"{name}: no wheels for {', '.join(missing)}")
    lines = ["# Written by `make lock`; do not edit."]
    for requirement in exact:
        lines += [f"{requirement} \\", *(f"    --hash=sha256:{value} \\" for value in sorted(hashes[requirement]))]
        lines[-1] = lines[-1].removesuffix(" \\")
    lock.path.write_text("\n".join(lines) + "\n")
    print(f"{name}: {len(exact)} packages → {lock.path.relative_to(ROOT)}", flush=True)


def collect_hashes(exact: Sequence[str], python: str, machine: str, kind: str, hashes: dict[str, set[str]]) -> None:
    """Add the hashes of the wheels that a target would take; a requirement without one for it is passed over."""
    try:
        items = resolve(exact, python, machine, kind, "--no-deps")
    except subprocess.CalledProcessError:
        if len(exact) == 1:
            return
        # One of them has no wheel for this target: halve until it stands alone.
        middle = len(exact) // 2
        collect_hashes(exact[:middle], python, machine, kind, hashes)
        collect_hashes(exact[middle:], python, machine, kind, hashes)
        return
    by_name = {requirement.split("==")[0]: requirement for requirement in exact}
    for item in items:
        name = normalize(item["metadata"]["name"])
        requirement = by_name[name]
        hashes[requirement].add(item["download_info"]["archive_info"]["hashes"]["sha256"])


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(requirements: Sequence[str], python: str, machine: str, kind: str, *options: str) -> list[dict[str, Any]]:
    """Return pip's report of what it would install for a target."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS[kind]] + [f"manylinux2014_{machine}"]
    if machine == "x86_64":
        tags += ["manylinux2010_x86_64", "manylinux1_x86_64"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--quiet", "--dry-run", "--ignore-installed",
            "--only-binary=:all:", "--report", str(report), "--target", folder, "--implementation", "cp",
            "--python-version", python, "--abi", f"cp{python.replace('.', '')}", "--abi", "abi3", "--abi", "none",
            *(f"--platform={tag}" for tag in tags), *options, *requirements,
        ]  # fmt: skip
        subprocess.run(command, check=True, stderr=subprocess.PIPE if options else None, timeout=600)
        return json.loads(report.read_text())["install"]


if __name__ == "__main__":
    main()
