"""The host-side limits: cgroups of both versions, mixed or not, found by trying.

The engine makes a machine's cgroups itself, before `runsc create`, which then only joins them. So the limits are ours
to set, read and change, whatever the release. All calls here are short but may wait for the kernel's cgroup lock
(12 ms while someone else is being moved): call them from a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cellbox.engines.gvisor.processes import Process

_CPU_PERIOD_US = 100_000
_V1_CONTROLLERS = ("memory", "cpu", "cpuacct", "pids", "freezer", "cpuset")
_V2_CONTROLLERS = ("memory", "cpu", "pids")
_SETTLE_S = 2.0
"""How long a removed machine's cgroup may stay busy. Dead stubs leave within some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a machine may use of the host."""

    memory_bytes: int
    visible_memory_bytes: int
    """What the guest sees as its memory: the limit while the sentry starts, raised to `memory_bytes` after that."""
    cpu: float
    visible_cpus: int
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchies:
    """Where the kernel shows its cgroups."""

    v1: dict[str, Path] = field(default_factory=dict[str, Path])
    """Controller (or `name=systemd`) → mount point."""
    v2: Path | None = None

    @classmethod
    def discover(cls, mountinfo: Path = Path("/proc/self/mountinfo")) -> Hierarchies:
        v1: dict[str, Path] = {}
        v2: Path | None = None
        for line in mountinfo.read_text().splitlines():
            mount, _, source = line.partition(" - ")
            kind, _, options = source.split(" ", 2)
            place = Path(mount.split(" ")[4])
            if kind == "cgroup2":
                v2 = v2 or place
            elif kind == "cgroup":
                for option in options.split(","):
                    if option in _V1_CONTROLLERS or option.startswith("name="):
                        v1.setdefault(option, place)
                v1.setdefault(place.name, place)  # blkio, devices, …: runsc joins them too, we only remove them
        return cls(v1=v1, v2=v2)

    def places(self) -> list[Path]:
        """Every mount point once."""
        return list(dict.fromkeys([*self.v1.values(), *([self.v2] if self.v2 else [])]))


class Cgroup:
    """The cgroups of one machine, one directory in each hierarchy."""

    def __init__(self, hierarchies: Hierarchies, path: str) -> None:
        self._hierarchies = hierarchies
        self.path: Final = path
        """As runsc wants it: absolute, from the root of every hierarchy."""

    def _directory(self, controller: str) -> Path | None:
        """Where a controller of this machine is, whichever version serves it."""
        if (place := self._hierarchies.v1.get(controller)) is not None:
            return self._at(place)
        v2 = self._hierarchies.v2
        if v2 is None or self._hierarchies.v1.get("memory") is not None:
            return None
        return self._at(v2)

    def _at(self, place: Path) -> Path:
        return place / self.path.lstrip("/")

    def create(self, limits: Limits) -> None:
        """Make the directories and set the limits. Raises `OSError`; nothing is left then."""
        try:
            if "memory" in self._hierarchies.v1:
                self._create_v1(limits)
            else:
                self._create_v2(limits)
        except OSError:
            self.remove()
            raise

    def _create_v1(self, limits: Limits) -> None:
        for controller in _V1_CONTROLLERS:
            if controller in self._hierarchies.v1 and controller != "cpuset":
                self._at(self._hierarchies.v1[controller]).mkdir(parents=True, exist_ok=True)
        memory, cpu = self._v1("memory"), self._v1("cpu")
        _write(memory / "memory.limit_in_bytes", limits.visible_memory_bytes)
        with contextlib.suppress(OSError):  # no swap accounting in this kernel
            _write(memory / "memory.swappiness", 0)
        _write(cpu / "cpu.cfs_period_us", _CPU_PERIOD_US)
        _write(cpu / "cpu.cfs_quota_us", _quota_us(limits.cpu))
        _write(self._v1("pids") / "pids.max", limits.tasks)
        if "cpuset" in self._hierarchies.v1:
            self._narrow_cpuset(limits.visible_cpus)

    def _v1(self, controller: str) -> Path:
        place = self._hierarchies.v1.get(controller)
        if place is None:
            raise FileNotFoundError(errno.ENOENT, f"no cgroup hierarchy for {controller}")
        return self._at(place)

    def _narrow_cpuset(self, cpus: int) -> None:
        """Show the sentry just so many processors while it starts, since that is how it counts them."""
        place = self._hierarchies.v1["cpuset"]
        directory = self._at(place)
        directory.mkdir(parents=True, exist_ok=True)
        # A new cpuset is empty and nothing can join an empty one: fill it from the top down.
        for level in (directory.parent, directory):
            for name in ("cpuset.cpus", "cpuset.mems"):
                _write(level / name, (level.parent / name).read_text().strip())
        everything = _expand_cpu_list((directory / "cpuset.cpus").read_text())
        if cpus < len(everything):
            _write(directory / "cpuset.cpus", ",".join(str(cpu) for cpu in everything[:cpus]))

    def _create_v2(self, limits: Limits) -> None:
        if self._hierarchies.v2 is None:
            raise FileNotFoundError(errno.ENOENT, "this host mounts no cgroups")
        directory = self._at(self._hierarchies.v2)
        directory.mkdir(parents=True, exist_ok=True)
        for level in reversed(directory.parents):
            if level.is_relative_to(self._hierarchies.v2):
                enabled = (level / "cgroup.subtree_control").read_text().split()
                if missing := [name for name in _V2_CONTROLLERS if name not in enabled]:
                    _write(level / "cgroup.subtree_control", " ".join(f"+{name}" for name in missing))
        _write(directory / "memory.max", limits.visible_memory_bytes)
        _write(directory / "memory.oom.group", 1)  # the whole machine or nothing, never a stub without its sentry
        with contextlib.suppress(OSError):
            _write(directory / "memory.swap.max", 0)
        _write(directory / "cpu.max", f"{_quota_us(limits.cpu)} {_CPU_PERIOD_US}")
        _write(directory / "pids.max", limits.tasks)

    def widen(self, limits: Limits) -> None:
        """After the sentry has seen what the guest may see: the real memory limit, and all processors to run on.

        Until `limit_cpu` there is no quota: a restore is the engine's own work, some 200 ms of processor time on two
        threads, and the quota of one core would stop it half-way for the rest of its period.
        """
        memory = self._directory("memory")
        assert memory is not None
        name = "memory.limit_in_bytes" if "memory" in self._hierarchies.v1 else "memory.max"
        _write(memory / name, limits.memory_bytes)
        if (place := self._hierarchies.v1.get("cpuset")) is not None:
            directory = self._at(place)
            _write(directory / "cpuset.cpus", (directory.parent / "cpuset.cpus").read_text().strip())
        self._set_quota("-1", "max")

    def limit_cpu(self, limits: Limits) -> None:
        """Hold the machine to its quota, from the moment on when something of the user's may run in it."""
        quota = str(_quota_us(limits.cpu))
        self._set_quota(quota, quota)

    def _set_quota(self, v1: str, v2: str) -> None:
        cpu = self._directory("cpu")
        assert cpu is not None
        if "cpu" in self._hierarchies.v1:
            _write(cpu / "cpu.cfs_quota_us", v1)
        else:
            _write(cpu / "cpu.max", f"{v2} {_CPU_PERIOD_US}")

    # -- reading

    def oom_kills(self) -> int:
        """How many of the machine's processes the kernel killed for the memory limit."""
        directory = self._directory("memory")
        if directory is None:
            return 0
        return _read_keyed(directory / "memory.oom_control").get("oom_kill", 0) or _read_keyed(
            directory / "memory.events"
        ).get("oom_kill", 0)

    def memory_bytes(self) -> tuple[int, int]:
        """Use now and at its highest."""
        directory = self._directory("memory")
        if directory is None:
            return 0, 0
        if "memory" in self._hierarchies.v1:
            return _read_int(directory / "memory.usage_in_bytes"), _read_int(directory / "memory.max_usage_in_bytes")
        now = _read_int(directory / "memory.current")
        return now, max(now, _read_int(directory / "memory.peak"))  # memory.peak: since kernel 5.19

    def cpu_seconds(self) -> float:
        if (directory := self._directory("cpuacct")) is None:
            return 0.0
        if "cpuacct" in self._hierarchies.v1:
            return _read_int(directory / "cpuacct.usage") / 1e9
        return _read_keyed(directory / "cpu.stat").get("usage_usec", 0) / 1e6

    def pids(self) -> set[int]:
        """The machine's processes; zombies are no longer in it."""
        found: set[int] = set()
        for place in self._hierarchies.places():
            with contextlib.suppress(OSError):
                found.update(int(word) for word in (self._at(place) / "cgroup.procs").read_text().split())
                if found:
                    break
        return found

    def limit_hits(self) -> dict[str, int]:
        """How often the cpu quota throttled the machine and the task limit refused a task."""
        cpu, pids = self._directory("cpu"), self._directory("pids")
        return {
            "cpu": _read_keyed(cpu / "cpu.stat").get("nr_throttled", 0) if cpu else 0,
            "tasks": _read_keyed(pids / "pids.events").get("max", 0) if pids else 0,
        }

    def missing(self, pid: int) -> list[str]:
        """Limits that don't hold for a process because it is in another cgroup of that controller."""
        wrong: list[str] = []
        for controller in _V2_CONTROLLERS:
            directory = self._directory(controller)
            if directory is None or str(pid) not in (directory / "cgroup.procs").read_text().split():
                wrong.append(controller)
        return wrong

    # -- freezing

    def freeze(self) -> None:
        """Stop every process; returns when all have stopped. Raises `OSError` where the host can't."""
        directory = self._freezer()
        if "freezer" in self._hierarchies.v1:
            _write(directory / "freezer.state", "FROZEN")
            _until(lambda: (directory / "freezer.state").read_text().strip() == "FROZEN")
        else:
            _write(directory / "cgroup.freeze", 1)
            _until(lambda: _read_keyed(directory / "cgroup.events").get("frozen") == 1)

    def thaw(self) -> None:
        directory = self._freezer()
        if "freezer" in self._hierarchies.v1:
            _write(directory / "freezer.state", "THAWED")
        else:
            _write(directory / "cgroup.freeze", 0)

    def _freezer(self) -> Path:
        directory = self._directory("freezer")
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, "no cgroup freezer on this host")
        return directory

    # -- the end

    def kill(self) -> None:
        """Kill every process in it, frozen ones too. Nothing happens if it is gone."""
        v2 = self._hierarchies.v2
        if v2 is not None and "memory" not in self._hierarchies.v1:
            with contextlib.suppress(OSError):  # before kernel 5.14 there is no cgroup.kill
                _write(self._at(v2) / "cgroup.kill", 1)
                return
        held = [process for pid in self.pids() if (process := Process.open(pid)) is not None]
        members = self.pids()  # asked again while they are held: membership is what makes a process ours
        for process in held:
            if process.pid in members:
                process.kill()
            process.close()
        with contextlib.suppress(OSError):  # a frozen process of v1 takes the signal only when thawed
            self.thaw()

    def remove(self) -> bool:
        """Remove the directories that are empty; returns whether all are gone. Try again after a moment if not."""
        gone = True
        for place in self._hierarchies.places():
            try:
                self._at(place).rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                gone = False
        return gone


class CgroupTree:
    """The cgroups of one installation: `/PREFIX/MACHINE` in every hierarchy."""

    def __init__(self, prefix: str, hierarchies: Hierarchies | None = None) -> None:
        """`prefix` is unique to the installation: a sweep removes what is below it and nothing else."""
        self._hierarchies = hierarchies or Hierarchies.discover()
        self._prefix = prefix.strip("/")

    @property
    def version(self) -> str:
        """`v1`, `v2`, `hybrid` (controllers on v1, with a v2 mount beside them) or `none`."""
        v1, v2 = "memory" in self._hierarchies.v1, self._hierarchies.v2 is not None
        return ("hybrid" if v2 else "v1") if v1 else ("v2" if v2 else "none")

    def cgroup(self, machine_id: str) -> Cgroup:
        return Cgroup(self._hierarchies, f"/{self._prefix}/{machine_id}")

    def machine_ids(self) -> set[str]:
        """Machines that have a cgroup in any hierarchy."""
        found: set[str] = set()
        for place in self._hierarchies.places():
            with contextlib.suppress(OSError):
                found.update(entry.name for entry in (place / self._prefix).iterdir() if entry.is_dir())
        return found

    def is_gone(self) -> bool:
        return not any((place / self._prefix).exists() for place in self._hierarchies.places())

    def remove(self) -> None:
        """Remove the installation's own directory where no machine is left in it."""
        for place in self._hierarchies.places():
            with contextlib.suppress(OSError):
                (place / self._prefix).rmdir()


def _quota_us(cpu: float) -> int:
    return max(1000, round(cpu * _CPU_PERIOD_US))  # the kernel takes no less than 1 ms


def _expand_cpu_list(text: str) -> list[int]:
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _write(path: Path, value: object) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # never O_CREAT: a missing file is a missing controller
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def _read_int(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _read_keyed(path: Path) -> dict[str, int]:
    try:
        lines: Iterable[str] = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(" ") for line in lines)
    return {key: int(value) for key, _, value in pairs if value.strip().isdigit()}


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _SETTLE_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(errno.ETIMEDOUT, "the cgroup did not freeze")
        time.sleep(0.0005)
