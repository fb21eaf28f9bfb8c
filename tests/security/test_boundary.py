# ruff: noqa: E501 - tables and programs
"""The boundary: what code in a sandbox can see, reach and break, as the root user of that sandbox."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cellbox
from cellbox import errors

from .conftest import Daemon

SOURCE = Path(cellbox.__file__).parent
HIDDEN = os.urandom(12).hex()
NewSandbox = Callable[..., cellbox.Sandbox]


@pytest.fixture(scope="module")
def box(client: cellbox.Client, daemon: Daemon) -> Iterator[cellbox.Sandbox]:
    assert daemon.canary
    with cellbox.Sandbox.create(ttl_seconds=600, client=client, metadata={"secret.token": HIDDEN}) as shared:
        yield shared


# ----------------------------------------------------------------------------------------------------- what is visible


def test_the_engine_is_what_we_say(box: cellbox.Sandbox, daemon: Daemon) -> None:
    assert box.info.engine == "gvisor"
    assert box.exec("cat /proc/version").stdout != Path("/proc/version").read_text()
    assert "gVisor" in box.exec("dmesg").stdout
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
    assert box.exec("cat /proc/sys/kernel/random/boot_id").stdout != boot_id
    assert daemon.processes_of(box.id), "the sandbox is a process of the engine on the host"


def test_no_secret_of_the_host_is_anywhere_in_the_guest(
    box: cellbox.Sandbox, client: cellbox.Client, daemon: Daemon
) -> None:
    with cellbox.Sandbox.create("base", client=client, env={"PEER": f"peer{daemon.canary[::-1]}"}) as peer:
        canaries = [daemon.canary, daemon.canary[::-1], daemon.admin_key, peer.id, HIDDEN, str(daemon.data_dir)]
        (daemon.data_dir / "canary").write_text(daemon.canary)
        box.filesystem.write("/tmp/.canaries", "\n".join(canaries))
        # The file of canaries, and the process that holds them, are the only ones to have them.
        hunt = (
            "cd /; for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/maps /proc/[0-9]*/mounts "
            "/proc/mounts /proc/net/* /proc/sys/kernel/*; do timeout 2 grep -alF -f /tmp/.canaries $f 2>/dev/null; done;"
            "timeout 40 grep -rlaF -f /tmp/.canaries /etc /run /var /root /home /tmp /mnt /srv /opt /dev/shm /sys "
            "/workspace /.cellbox /usr/local 2>/dev/null | grep -v '^/tmp/.canaries$'; ls /proc/*/cwd/ /proc/*/root/ "
            "2>/dev/null | grep -F -f /tmp/.canaries; dmesg | grep -F -f /tmp/.canaries"
        )
        assert box.exec(hunt, timeout_seconds=60).stdout == ""
        assert box.exec("env").stdout.count("CELLBOX") <= 1, "only the mark of the command"
        assert HIDDEN not in json.dumps(box.refresh().metadata)


LOOK_AT_FDS = """
import json, os
found = {}
for name in os.listdir('/proc/self/fd'):
    try:
        found[name] = os.readlink(f'/proc/self/fd/{name}')
    except OSError:
        pass
print(json.dumps(found))
"""


def harmless(target: str) -> bool:
    return target == "/dev/null" or target.startswith(("pipe:[", "socket:[", "anon_inode:[", "/memfd:", "/proc/"))


def test_first_instruction_descriptors(box: cellbox.Sandbox, daemon: Daemon) -> None:
    command = json.loads(box.exec("python3 -", stdin=LOOK_AT_FDS).stdout)
    assert {int(name) for name in command} <= {0, 1, 2, 3}, "3 is the listing itself"
    long_command = json.loads(box.exec(f": {'x' * 200_000}\npython3 - <<'END'{LOOK_AT_FDS}END").stdout)
    for context in (box.create_code_context(), box.create_code_context()):
        kernel = json.loads(context.run_code(LOOK_AT_FDS).stdout)
        child = json.loads(
            context.run_code(f"import subprocess\n_ = subprocess.run(['python3', '-c', {LOOK_AT_FDS!r}])").stdout
        )
        assert {int(name) for name in child} <= {0, 1, 2, 3}, "a kernel hands nothing to what it starts"
        context.close()
        for found in (command, long_command, kernel, child):
            assert all(map(harmless, found.values())), found
    assert daemon.process is not None
    for entry in Path(f"/proc/{daemon.process.pid}/fd").iterdir():
        if int(entry.name) > 2:
            flags = Path(f"/proc/{daemon.process.pid}/fdinfo/{entry.name}").read_text().split("flags:")[1].split()[0]
            assert int(flags, 8) & os.O_CLOEXEC, f"the daemon would leak {entry.readlink()} to what it starts"


def test_the_daemons_descriptors_do_not_grow(client: cellbox.Client, daemon: Daemon) -> None:
    assert daemon.process is not None
    folder = f"/proc/{daemon.process.pid}/fd"

    def live_once() -> None:
        with cellbox.Sandbox.create("base", client=client, ttl_seconds=60) as one:
            one.exec("true")

    live_once()
    before = len(os.listdir(folder))
    for _ in range(10):
        live_once()
    deadline = time.monotonic() + 20  # a kill is done a moment before all that it leaves is given back
    while (now := len(os.listdir(folder))) > before + 2:
        assert time.monotonic() < deadline, (before, now)
        time.sleep(0.05)


def test_devices_made_inside_lead_nowhere(box: cellbox.Sandbox) -> None:
    tried = box.exec(
        "cd /tmp; for d in 'mem c 1 1' 'kmem c 1 2' 'port c 1 4' 'kmsg c 1 11' 'kvm c 10 232' 'sda b 8 0' 'loop b 7 0' "
        "'vda b 254 0' 'tty0 c 4 0'; do mknod $d 2>/dev/null; head -c 1 ${d%% *} >/dev/null 2>&1 && echo opened $d; done"
    )
    assert tried.stdout == ""
    assert box.exec("ls /dev/kvm /dev/mem /dev/sda /dev/loop0 2>/dev/null").stdout == ""


def test_settings_of_the_host_are_out_of_reach(box: cellbox.Sandbox) -> None:
    names = ["kernel/core_pattern", "kernel/hostname", "net/ipv4/ip_forward", "vm/overcommit_memory", "kernel/sysrq"]
    paths = [Path("/proc/sys") / name for name in names]
    before = [path.read_bytes() for path in paths if path.exists()]
    for name in [*(f"sys/{name}" for name in names), "sysrq-trigger", "sys/vm/drop_caches", "1/oom_score_adj"]:
        box.exec(f"echo 7 > /proc/{name}; echo 1 > /sys/{name}")
    box.exec("mount -o remount,rw /sys; echo 1 > /sys/kernel/uevent_helper; hostname evil")
    assert [path.read_bytes() for path in paths if path.exists()] == before


# --------------------------------------------------------------------------------------------------------- privileges


def test_root_inside_has_few_rights_and_others_none(box: cellbox.Sandbox) -> None:
    def capabilities(user: str) -> int:
        return int(box.exec("grep CapEff /proc/self/status", user=user).stdout.split()[1], 16)

    forbidden = {2: "DAC_READ_SEARCH", 12: "NET_ADMIN", 13: "NET_RAW", 16: "SYS_MODULE", 17: "SYS_RAWIO", 19: "SYS_PTRACE",
                 21: "SYS_ADMIN", 22: "SYS_BOOT", 24: "SYS_RESOURCE", 25: "SYS_TIME", 27: "MKNOD"}  # fmt: skip
    assert [name for number, name in forbidden.items() if capabilities("root") >> number & 1] == []
    kernel = box.run_code("print([l for l in open('/proc/self/status') if 'CapEff' in l][0].split()[1])").stdout
    assert int(kernel, 16) == capabilities("root")
    assert capabilities("nobody") == 0
    box.exec("cp /usr/bin/id /tmp/setuid-id; chmod 4755 /tmp/setuid-id")
    assert box.exec("/tmp/setuid-id -u", user="nobody").stdout == "65534\n", "a set-uid bit gives nothing"
    assert box.exec("mount -t tmpfs none /mnt || umount /proc || unshare -m true").exit_code != 0


def test_no_control_socket_is_reachable(box: cellbox.Sandbox) -> None:
    assert box.exec("find / -xdev -type s 2>/dev/null; ls /run/docker.sock /run/containerd 2>/dev/null").stdout == ""
    lines = box.exec("cat /proc/net/unix").stdout.splitlines()[1:]
    assert [line for line in lines if len(line.split()) > 7] == [], "no Unix socket has a name"


# ------------------------------------------------------------------------------------------------ what a request can say


@pytest.mark.parametrize(
    "key", ["dev.gvisor.flag.debug", "dev.gvisor.internal.x", "dev.gvisor.tar.rootfs.upper", "io.kubernetes.cri"]
)
def test_nothing_of_a_request_reaches_the_spec(new_sandbox: NewSandbox, daemon: Daemon, key: str) -> None:
    marker = f"marker-{os.urandom(6).hex()}"
    box = new_sandbox(template="base", metadata={key: marker}, env={key.replace(".", "_"): marker})
    assert box.exec("env | grep -c marker-").stdout == "1\n", "the variable is the sandbox's own"
    for folder, _, files in os.walk(daemon.data_dir / "engine"):
        for file in files:
            path = Path(folder, file)
            if path.stat().st_size < 1 << 20 and path.suffix in {".json", ".state", ""}:
                assert marker.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    "extra",
    [{"network": "host"}, {"network": "container:x"}, {"privileged": True}, {"mounts": [{"source": "/"}]}, {"owner": "admin"},
     {"env": {"A=B": "1"}}, {"env": {"": "1"}}, {"env": {"A": "x\0y"}}, {"template": "../../etc"}, {"memory_mb": -1},
     {"cpu": 1e9}, {"disk_mb": 1 << 60}],
)  # fmt: skip
def test_what_a_request_must_not_ask_for(client: cellbox.Client, daemon: Daemon, extra: dict[str, object]) -> None:
    import http.client
    from urllib.parse import urlsplit

    address = urlsplit(daemon.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    headers = {"Authorization": f"Bearer {daemon.admin_key}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/sandboxes", json.dumps({"template": "base", **extra}), headers)
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    if answer.status == 201 or "id" in body:
        cellbox.Sandbox.get(body["id"], client=client).kill()
    assert answer.status in {400, 422}, body


# -------------------------------------------------------------------------------------------------- attacks from inside


@pytest.mark.parametrize(
    "attack",
    ["kill -9 1", "kill -STOP 1", "kill -9 -1", "kill -STOP -1", "kill -9 2; kill -STOP 2", "kill -9 $PPID", "pkill -9 python",
     "python3 -c \"open('/proc/1/mem', 'r+b')\"", "python3 -c \"open('/proc/2/mem', 'r+b').write(b'x')\"",
     "python3 -c 'import ctypes; c = ctypes.CDLL(None); print(c.ptrace(16, 1, 0, 0), c.ptrace(16, 2, 0, 0))'",
     "for f in /proc/1/fd/* /proc/2/fd/*; do echo evil > $f; done", "ip link set lo down; rm -rf /dev/null /dev/shm/*",
     "rm -rf /.cellbox /etc /workspace; mkdir /etc", "mv /usr/lib/python3 /x; chmod 000 /usr/bin /bin; chmod 755 /usr/bin /bin"],
)  # fmt: skip
def test_a_sandbox_survives_attacks_on_its_own_agent(attacked: cellbox.Sandbox, attack: str) -> None:
    attacked.exec(attack, timeout_seconds=3)
    assert attacked.exec("echo alive").stdout == "alive\n"
    with attacked.create_code_context() as context:
        assert context.run_code("6 * 7").text == "42"
    attacked.filesystem.write("/tmp/file", "x")
    assert attacked.filesystem.read("/tmp/file") == b"x"
    assert attacked.refresh().status == "running"


@pytest.fixture(scope="module")
def attacked(client: cellbox.Client) -> Iterator[cellbox.Sandbox]:
    with cellbox.Sandbox.create(ttl_seconds=600, client=client) as shared:
        yield shared


def test_a_cell_that_stops_its_own_process_ends_at_its_limit(attacked: cellbox.Sandbox) -> None:
    with attacked.create_code_context() as context:
        context.run_code("kept = 1")
        started = time.monotonic()
        stopped = context.run_code("import os\nos.kill(os.getpid(), 19)", timeout_seconds=0.5)
        assert time.monotonic() - started < 3
        assert stopped.timed_out
        assert context.run_code("'kept' in globals()").text == str(stopped.state_kept)


# ------------------------------------------------------------------------------------------------- what the host decodes

UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
UNSAFE_CALLS = {"eval", "exec", "__import__"}


def test_the_host_and_the_client_decode_no_code() -> None:
    found: list[str] = []
    for path in SOURCE.rglob("*.py"):
        if path.is_relative_to(SOURCE / "guest") or path.is_relative_to(SOURCE / "templates" / "inside"):
            continue  # these run in the sandbox
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module.partition(".")[0]]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS:
                found.append(f"{path}:{node.lineno}: {node.func.id}()")
            found += [f"{path}: {name}" for name in names if name in UNSAFE_MODULES]
    assert found == []


def test_what_a_sandbox_prints_can_not_drive_the_users_terminal(box: cellbox.Sandbox, daemon: Daemon) -> None:
    evil = "\\033]52;c;ZXZpbA==\\007\\033[2J\\033]0;title\\007\\033P$q\\033\\\\\\302\\233 2J\\033[31mred\\033[0m\\r\\n"
    leader, follower = os.openpty()
    command = [
        os.path.dirname(os.sys.executable) + "/cellbox",
        "exec",
        box.id,
        "--",
        f"printf '{evil}'; printf '{evil}' >&2",
    ]  # type: ignore[attr-defined]
    environment = {
        **os.environ,
        "CELLBOX_API_URL": daemon.url,
        "CELLBOX_API_KEY": daemon.admin_key,
        "CELLBOX_API": daemon.url,
    }
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower, timeout=60, check=False
    )
    os.close(follower)
    shown = b""
    try:
        while piece := os.read(leader, 65536):
            shown += piece
    except OSError:
        pass
    os.close(leader)
    assert done.returncode == 0, shown
    assert b"red" in shown
    for sequence in (b"\x1b]", b"\x1b[2J", b"\x1bP", b"\xc2\x9b", b"\x07"):
        assert sequence not in shown, shown


def test_a_removed_sandbox_leaves_a_typed_error(new_sandbox: NewSandbox) -> None:
    box = new_sandbox(template="base")
    box.kill()
    for attempt in (box.refresh, lambda: box.exec("id"), lambda: box.filesystem.read("/etc/passwd"), box.contexts):
        with pytest.raises(errors.SandboxNotFoundError):
            attempt()
