"""`cellbox doctor` and `cellbox setup`: what this host can do, what is missing and how to fix it. Needs no daemon."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cellbox._version import __version__
from cellbox.cli.about import DataDir, EngineName, Flag, JsonFlag
from cellbox.cli.exits import Exit
from cellbox.cli.output import print_json, say, size
from cellbox.cli.terminal import escaped
from cellbox.engines.base import Probe, Problem
from cellbox.engines.registry import engine_names, install_engine, load_engine, prepare_process
from cellbox.errors import CellboxError, EngineUnavailableError

if TYPE_CHECKING:
    from cellbox.control.settings import Settings

_SMALL_MEMORY = 2 * 1024**3
_SMALL_DISK = 6 * 1024**3
"""The larger template, its packages while it is built, and its snapshot."""


class Template(msgspec.Struct, frozen=True):
    """A template as it lies in the data directory."""

    name: str
    digest: str
    size_bytes: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. Keys are added, never renamed."""

    fit: bool
    """Can sandboxes be created here?"""
    version: str
    engine: str
    engine_version: str
    enforced: dict[str, bool]
    problems: list[dict[str, Any]]
    """`summary`, `fix` and whether it is `fatal`."""
    advisories: list[str]
    templates: list[Template]
    facts: dict[str, str]


def doctor(
    *,
    as_json: JsonFlag = False,
    install: Flag = False,
    data_dir: DataDir = None,
    engine: EngineName = None,
) -> int:
    """Tell what this host can do, what is missing and how to fix it; exit code 6 when sandboxes can't be created.

    Args:
        install: Fetch the engine from this machine's own package mirror, if it is missing.
        data_dir: Where the daemon keeps its state.
        engine: Which engine to examine.
    """
    settings = _settings(data_dir, engine)
    directory, name = settings.data_dir.absolute(), settings.engine
    if install:
        _install(name, directory, show=not as_json)
    with suppress(EngineUnavailableError):  # the probe meets the same obstacle and reports it
        prepare_process(name)
    probe = asyncio.run(_probe(name, directory))
    report = _report(probe, directory, settings.templates_dir or directory)
    print_json(report) if as_json else _print(report)
    return Exit.OK if report.fit else Exit.ENGINE_UNFIT


def setup(*, data_dir: DataDir = None, engine: EngineName = None) -> int:
    """Fetch the isolation engine if it is missing, then tell what this host can do; the same as `doctor --install`.

    Args:
        data_dir: Where the daemon keeps its state.
        engine: Which engine to fetch.
    """
    return doctor(install=True, data_dir=data_dir, engine=engine)


def _settings(data_dir: Path | None, engine: str | None) -> Settings:
    """What a daemon started here would use."""
    from cellbox.server.settings import load_settings

    return load_settings(overrides={"data_dir": data_dir, "engine": engine})


def _install(engine: str, directory: Path, *, show: bool) -> None:
    state = directory / "engine"
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    version = asyncio.run(install_engine(engine, state, say if show else lambda _: None))
    if show:
        say(f"{engine} {version} is in place" if version else f"{engine} has nothing to install")


async def _probe(name: str, directory: Path) -> Probe:
    state = directory / "engine"
    try:
        engine = load_engine(name, state)
        try:
            return await engine.probe()
        finally:
            await engine.aclose()
    except (CellboxError, OSError) as error:
        problem = Problem(
            summary=str(error), fix=f"engines that are installed: {', '.join(engine_names()) or 'none'}", fatal=True
        )
        return Probe(engine=name, version="", usable=False, problems=(problem,))


def _report(probe: Probe, directory: Path, templates_dir: Path) -> Report:
    problems = [msgspec.to_builtins(problem) for problem in probe.problems]
    facts, host_problems = _host(directory)
    problems += host_problems
    if not probe.version and not any("install" in str(one["fix"]) for one in problems):
        problems.append(_problem("the engine is not in place", "run `cellbox doctor --install`", fatal=True))
    return Report(
        fit=probe.usable and not any(one["fatal"] for one in problems),
        version=__version__,
        engine=probe.engine,
        engine_version=probe.version,
        enforced=dict(probe.enforced),
        problems=problems,
        advisories=list(probe.advisories),
        templates=_templates(templates_dir / "templates"),
        facts={**facts, **{f"engine_{key}": value for key, value in probe.facts.items()}},
    )


def _problem(summary: str, fix: str, *, fatal: bool) -> dict[str, Any]:
    return {"summary": summary, "fix": fix, "fatal": fatal}


def _host(directory: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Kernel, Python, memory, disk."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    memory, missing = _available_memory(), _missing_packages()
    facts = {
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "user": "root" if os.geteuid() == 0 else str(os.geteuid()),
        "cores": str(os.cpu_count()),
        "memory_available": size(memory),
        "data_dir": str(directory),
        "disk_free": size(free),
    }
    elsewhere = "choose another --data-dir"
    checks = (
        (platform.system() != "Linux", True, "sandboxes need Linux", "set CELLBOX_API_URL to a daemon on a Linux host"),
        (memory < _SMALL_MEMORY, False, f"little memory: {facts['memory_available']}", "create smaller sandboxes"),
        (free < _SMALL_DISK, False, f"little disk: {facts['disk_free']} under {existing}", elsewhere),
        (not os.access(existing, os.W_OK), True, f"{existing} can't be written to", elsewhere),
        (bool(missing), True, f"packages are missing: {', '.join(missing)}", "pip install 'cellbox[server]'"),
    )
    return facts, [_problem(what, fix, fatal=fatal) for is_so, fatal, what, fix in checks if is_so]


def _available_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return sys.maxsize


def _missing_packages() -> list[str]:
    from importlib.util import find_spec

    return [name for name in ("anyio", "starlette", "structlog", "uvicorn") if find_spec(name) is None]


def _templates(root: Path) -> list[Template]:
    """What is built already. A template that is missing is no problem: it can be built."""
    from cellbox.templates.catalogue import Catalogue

    if not root.is_dir():
        return []
    return [
        Template(name=one.name, digest=one.digest, size_bytes=one.manifest.size_bytes) for one in Catalogue(root).list()
    ]


def _print(report: Report) -> None:
    verdict = "Sandboxes can be created here." if report.fit else "Sandboxes can NOT be created here."
    of_engine = {key.removeprefix("engine_"): value for key, value in report.facts.items() if key.startswith("engine_")}
    of_host = {key: value for key, value in report.facts.items() if not key.startswith("engine_")}
    _line("", f"Cellbox {report.version}: {verdict}")
    print()
    _line("Engine", f"{report.engine} {report.engine_version or '(not found)'}")
    for key, value in of_engine.items():
        _line(" ", f"{key}: {value}")
    if report.enforced:
        _line("Enforced", ", ".join(name for name, is_on in report.enforced.items() if is_on) or "nothing")
        _line("Not", ", ".join(name for name, is_on in report.enforced.items() if not is_on) or "nothing is missing")
    _line("Host", ", ".join(f"{key} {value}" for key, value in of_host.items()))
    for template in report.templates:
        _line("Template", f"{template.name} ({size(template.size_bytes)}, {template.digest[:12]})")
    if not report.templates:
        _line("Templates", "none built yet; `cellbox template build code-interpreter` builds the default one")
    for problem in report.problems:
        print()
        _line("Must fix" if problem["fatal"] else "Worth it", str(problem["summary"]))
        if problem["fix"]:
            _line(" ", f"→ {problem['fix']}")
    if report.advisories:
        print()
        _line("Advisories", f"that apply to {report.engine} {report.engine_version}:")
        for advisory in report.advisories:
            _line(" ", advisory)
        _line(" ", "→ for production, install gVisor's official release and put it on the PATH")


def _line(label: str, text: str) -> None:
    """One line; what it says may come from programs and files that others chose."""
    print(f"{label:<12}{escaped(text)}" if label else escaped(text))
