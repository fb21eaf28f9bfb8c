"""Cgroups of both versions, on directories that look like the kernel's."""

from pathlib import Path

import pytest

from cellbox.engines.gvisor.cgroups import Cgroup, CgroupTree, Hierarchies, Limits

_LIMITS = Limits(memory_bytes=300 << 20, visible_memory_bytes=128 << 20, cpu=1.5, visible_cpus=1, tasks=456)


def _mountinfo(path: Path, *lines: str) -> Path:
    file = path / "mountinfo"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_mixed_hierarchies_are_told_apart(tmp_path: Path) -> None:
    hierarchies = Hierarchies.discover(
        _mountinfo(
            tmp_path,
            "22 1 0:1 / /proc rw - proc proc rw",
            "32 31 0:29 / /cg/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct",
            "35 31 0:32 / /cg/memory rw,relatime shared:1 - cgroup cgroup rw,memory",
            "40 31 0:37 / /cg/systemd rw - cgroup cgroup rw,name=systemd",
            "41 31 0:38 / /cg/unified rw - cgroup2 cgroup2 rw",
        )
    )
    assert hierarchies.v1["cpuacct"] == hierarchies.v1["cpu"] == Path("/cg/cpu,cpuacct")
    assert hierarchies.v2 == Path("/cg/unified")
    assert sorted(map(str, hierarchies.places())) == ["/cg/cpu,cpuacct", "/cg/memory", "/cg/systemd", "/cg/unified"]
    assert CgroupTree("x", hierarchies).version == "hybrid"


@pytest.fixture
def v2(tmp_path: Path) -> tuple[Cgroup, Path]:
    """A pure v2 host on which the machine's directory exists already, with the kernel's files."""
    directory = tmp_path / "prefix/aa"
    directory.mkdir(parents=True)
    for level in (tmp_path, tmp_path / "prefix"):
        (level / "cgroup.subtree_control").write_text("cpu")
    for name in (
        "memory.max",
        "memory.oom.group",
        "memory.swap.max",
        "cpu.max",
        "pids.max",
        "cgroup.freeze",
        "cgroup.kill",
    ):
        (directory / name).touch()
    return Cgroup(Hierarchies(v2=tmp_path), "/prefix/aa"), directory


def test_v2_limits(v2: tuple[Cgroup, Path]) -> None:
    cgroup, directory = v2
    cgroup.create(_LIMITS)
    read = {path.name: path.read_text() for path in directory.iterdir()}
    assert read["memory.max"] == str(128 << 20)
    assert read["cpu.max"] == "150000 100000"
    assert read["pids.max"] == "456"
    assert read["memory.oom.group"] == "1"
    assert (directory.parent / "cgroup.subtree_control").read_text() == "+memory +pids"
    cgroup.widen(_LIMITS)
    assert (directory / "memory.max").read_text() == str(300 << 20)
    assert (directory / "cpu.max").read_text().startswith("max 100000")  # a plain file keeps its longer end
    cgroup.limit_cpu(_LIMITS)
    assert (directory / "cpu.max").read_text() == "150000 100000"


def test_v2_readings(v2: tuple[Cgroup, Path]) -> None:
    cgroup, directory = v2
    (directory / "memory.current").write_text("1000\n")
    (directory / "memory.peak").write_text("2000\n")
    (directory / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    (directory / "cpu.stat").write_text("usage_usec 1500000\nnr_throttled 7\n")
    (directory / "cgroup.procs").write_text("11\n12\n")
    assert cgroup.memory_bytes() == (1000, 2000)
    assert cgroup.oom_kills() == 1
    assert cgroup.cpu_seconds() == 1.5
    assert cgroup.limit_hits()["cpu"] == 7
    assert cgroup.pids() == {11, 12}
    assert cgroup.missing(11) == []
    assert cgroup.missing(13) == ["memory", "cpu", "pids"]


def test_v2_freezing_waits_until_all_stand_still(v2: tuple[Cgroup, Path]) -> None:
    cgroup, directory = v2
    (directory / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    cgroup.freeze()
    assert (directory / "cgroup.freeze").read_text() == "1"
    cgroup.thaw()
    assert (directory / "cgroup.freeze").read_text().startswith("0")


def test_a_host_without_cgroups_says_so(tmp_path: Path) -> None:
    tree = CgroupTree("x", Hierarchies())
    assert tree.version == "none"
    assert tree.machine_ids() == set()
    with pytest.raises(OSError, match="cgroup"):
        tree.cgroup("aa").create(_LIMITS)


def test_a_host_that_gives_no_rights_leaves_nothing(tmp_path: Path) -> None:
    for name in ("memory", "cpu", "cpuacct", "pids", "freezer"):
        (tmp_path / name).mkdir()
    cgroup = Cgroup(Hierarchies(v1={name.name: name for name in tmp_path.iterdir()}), "/prefix/aa")
    with pytest.raises(OSError, match="limit_in_bytes"):  # a directory that the kernel does not fill
        cgroup.create(_LIMITS)
    assert not list(tmp_path.glob("*/prefix/aa"))
