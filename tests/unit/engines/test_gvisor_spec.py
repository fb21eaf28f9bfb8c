"""The OCI specification: generated from named fields alone, and the same for boot and restore."""

from pathlib import Path

import pytest

from cellbox.engines.base import ATTACHMENTS, Bind, EngineFault, MachineSpec
from cellbox.engines.gvisor.layout import Layout, check_machine_id
from cellbox.engines.gvisor.spec import host_tasks, memory_limit_bytes, oci_spec, visible_cpus
from cellbox.errors import EngineUnavailableError


def _spec(**changes: object) -> MachineSpec:
    settings = {
        "machine_id": "ab-12",
        "rootfs": Path("/roots/one"),
        "argv": ("/guest", "--serve"),
        "env": {"dev.gvisor.flag.debug": "true", "A": "b=c"},
        "memory_mb": 512,
        "disk_mb": 1024,
        "cpu": 1.5,
        "tasks": 100,
    }
    return MachineSpec(**(settings | changes))  # pyright: ignore[reportArgumentType]


def test_nothing_but_known_keys_is_in_it() -> None:
    config = oci_spec(_spec(), cgroups_path="/cellbox-x/ab-12", place=None)
    assert config.keys() == {"ociVersion", "hostname", "process", "root", "mounts", "linux"}
    assert config["linux"].keys() == {"namespaces", "cgroupsPath"}
    assert "annotations" not in config


def test_environment_stays_environment() -> None:
    process = oci_spec(_spec(), cgroups_path=None, place=None)["process"]
    assert process["env"] == ["dev.gvisor.flag.debug=true", "A=b=c"]
    assert process["args"] == ["/guest", "--serve"]


def test_root_is_read_only_unless_asked() -> None:
    assert oci_spec(_spec(), cgroups_path=None, place=None)["root"] == {"path": "/roots/one", "readonly": True}
    assert oci_spec(_spec(writable_root=True), cgroups_path=None, place=None)["root"]["readonly"] is False


def test_only_kernel_filesystems_and_binds_are_mounted() -> None:
    bind = Bind(host_path=Path("/data"), guest_path="/workspace", read_only=True)
    mounts = oci_spec(_spec(binds=(bind,)), cgroups_path=None, place=None)["mounts"]
    assert [(mount["destination"], mount["type"]) for mount in mounts] == [
        ("/proc", "proc"),
        ("/sys", "sysfs"),
        ("/dev", "tmpfs"),
        ("/workspace", "bind"),
    ]
    assert mounts[-1]["options"] == ["rbind", "ro", "nosuid", "nodev"]
    shown = oci_spec(_spec(), cgroups_path=None, place=Path("/state/mounts/5"))["mounts"][-1]
    assert (shown["destination"], shown["source"]) == (ATTACHMENTS, "/state/mounts/5")


def test_capabilities_hold_none_that_reaches_devices_or_limits() -> None:
    process = oci_spec(_spec(), cgroups_path=None, place=None)["process"]
    held = set(process["capabilities"]["bounding"])
    assert process["noNewPrivileges"] is True
    assert not held & {
        "CAP_MKNOD",
        "CAP_SYS_RESOURCE",
        "CAP_SYS_PTRACE",
        "CAP_NET_RAW",
        "CAP_NET_ADMIN",
        "CAP_SYS_MODULE",
    }


def test_task_limit_of_the_guest_is_met_before_that_of_the_host() -> None:
    limits = {
        limit["type"]: limit["hard"] for limit in oci_spec(_spec(), cgroups_path=None, place=None)["process"]["rlimits"]
    }
    assert limits["RLIMIT_NPROC"] == 100
    assert limits["RLIMIT_CORE"] == 0
    assert host_tasks(_spec()) > 2 * 100


def test_host_memory_limit_holds_memory_disk_and_overhead() -> None:
    assert memory_limit_bytes(_spec()) == (512 + 1024 + 32 + 60) << 20


@pytest.mark.parametrize(("cpu", "seen"), [(0.25, 1), (1, 1), (1.5, 2), (4, 4)])
def test_guest_sees_whole_processors(cpu: float, seen: int) -> None:
    assert visible_cpus(_spec(cpu=cpu)) == seen


@pytest.mark.parametrize("machine_id", ["", "-a", "A", "../a", "a/b", "a\n", "g", "a" * 41])
def test_bad_machine_ids_are_refused(machine_id: str) -> None:
    with pytest.raises(EngineFault):
        check_machine_id(machine_id)


def test_layout_tells_machines_from_every_kind_of_file(tmp_path: Path) -> None:
    layout = Layout.make(tmp_path)
    layout.bundle("aa").mkdir()
    layout.socket("bb").touch()
    layout.state_file("cc").touch()
    (layout.root / "null-netns").touch()
    assert layout.machine_ids() == {"aa", "bb", "cc"}
    assert tmp_path.joinpath("machines").stat().st_mode & 0o777 == 0o700


def test_sockets_move_out_of_a_path_that_is_too_long_for_them(tmp_path: Path) -> None:
    layout = Layout.make(tmp_path / ("x" * 90))
    try:
        assert not layout.root.is_relative_to(tmp_path)
        assert len(str(layout.socket("a" * 40))) <= 107
        assert layout.root.stat().st_mode & 0o077 == 0
        layout.root.chmod(0o777)
        with pytest.raises(EngineUnavailableError, match="only this user"):
            Layout.make(layout.state)
    finally:
        layout.discard_root()
    assert not layout.root.exists()


def test_installations_have_cgroups_of_their_own(tmp_path: Path) -> None:
    assert Layout(tmp_path / "a").cgroup_prefix != Layout(tmp_path / "b").cgroup_prefix
