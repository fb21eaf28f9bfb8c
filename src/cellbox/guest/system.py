"""Turns the waiting guest into a sandbox: namespaces, mounts, names, limits, rights. Called by PID 1 only.

The template lies read-only at `/`. The user's root is an overlay of it with a sized tmpfs, so the disk is bounded and
a restore has nothing to copy. The user's processes live in a PID namespace of their own, because gVisor delivers every
signal to a PID 1, SIGKILL and SIGSTOP too, and `kill -9 1` inside a sandbox must not take our agent with it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import resource
import signal
import sys
from contextlib import suppress
from functools import cache
from typing import NoReturn

from cellbox.wire.messages import Configure

PRIVATE = "/.cellbox"
USER_ROOT = f"{PRIVATE}/root"
"""Where the user's root is mounted, as seen from the template's. Kernels forked by the zygote chroot there."""
ATTACHMENTS = f"{PRIVATE}/mounts"
"""Where the engine shows what is attached to this machine; what may not be written is read-only there already."""
DEFAULT_DIRECTORY = "/workspace"

_DISK = f"{PRIVATE}/rw"
_ASSUMED_DIRECTORIES = (DEFAULT_DIRECTORY, "/work", "/app", "/home/panda", "/mnt/session/outputs")
"""Places that agents and the clients we are compatible with write to without asking."""
_BYTES_PER_INODE = 8192
_OPEN_FILES = 65536
_HOSTS_BYTES = 64 * 1024

_CLONE_NEWPID = 0x20000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC = 1, 2, 4, 32, 4096, 16384
_PR_SET_DUMPABLE, _PR_SET_NAME, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 4, 15, 24, 36
_LAST_CAPABILITY, _SYS_ADMIN = 40, 21
_KEPT_CAPABILITIES = {
    0,  # CHOWN
    1,  # DAC_OVERRIDE
    3,  # FOWNER
    4,  # FSETID
    5,  # KILL
    6,  # SETGID
    7,  # SETUID
    8,  # SETPCAP
    10,  # NET_BIND_SERVICE
    18,  # SYS_CHROOT
}
"""What root in the sandbox may do. Not SYS_ADMIN (mounts), SYS_PTRACE (our memory), SYS_RESOURCE (the task limit)."""

_libc = ctypes.CDLL(None, use_errno=True)


def prepare() -> list[str]:
    """Protect this process, before it has a child. Returns what could not be done, in words.

    The bounding set only matters at exec: this process keeps its rights for the mounts to come, and everything that it
    starts has none of them, at no cost per process.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    _prctl(_PR_SET_DUMPABLE, 0)
    dropped = {
        capability
        for capability in range(_LAST_CAPABILITY + 1)
        if capability not in _KEPT_CAPABILITIES and not _prctl(_PR_CAPBSET_DROP, capability)
    }
    return [] if _SYS_ADMIN in dropped else ["the right to mount could not be taken from the sandbox's root user"]


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants. For running in place, where this process is not PID 1."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class Namespace:
    """The PID namespace of the user's processes, and its first process, which does nothing but inherit orphans.

    The kernel removes everything in the namespace when that process dies; then `Namespace()` again makes a new one.
    """

    def __init__(self) -> None:
        """Make the namespace: children of this process are born into it from now on. Raises `OSError`."""
        _check(_libc.unshare(_CLONE_NEWPID), "unshare")
        command, self._command = os.pipe()
        self._answer, answer = os.pipe()
        null = _null_device()
        self.pid = os.fork()
        """Of its first process, as this process sees it."""
        if self.pid == 0:
            try:
                _inherit_orphans(command, answer, null)
            finally:
                os._exit(1)  # whatever went wrong, the copy of our event loop must not go on
        os.close(command)
        os.close(answer)

    def mount_proc(self) -> None:
        """Mount this namespace's `/proc` in the user's root. Needs the template's root. Raises `OSError`."""
        # A proc file system shows the namespace of the process that mounted it.
        os.write(self._command, b"m")
        answer = os.read(self._answer, 1)
        if answer != b"\0":
            raise OSError(answer[0] if answer else 0, "mounting /proc for the sandbox failed")

    def close(self) -> None:
        """End every process in the namespace."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.close(self._command)
        os.close(self._answer)


@cache
def _null_device() -> int:
    """Return a descriptor of `/dev/null` that was opened before the user could remove it."""
    return os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)


def _inherit_orphans(command: int, answer: int, null: int) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans are reaped by the kernel, without a wake-up
    _libc.prctl(_PR_SET_NAME, b"init", 0, 0, 0)  # no part of "python", so that `pkill python` spares it
    # What it keeps open, the user's root might open again through `/proc/1/fd`: not the channel to the host.
    kept = {command, answer}
    for descriptor in range(3):
        os.dup2(null, descriptor)
    for descriptor in range(3, 256):
        if descriptor not in kept:
            with suppress(OSError):
                os.close(descriptor)
    while True:
        try:
            if os.read(command, 1):
                os.write(answer, bytes([_mount("proc", f"{USER_ROOT}/proc", "proc", _MS_NOSUID | _MS_NODEV)]))
            else:
                os._exit(0)
        except InterruptedError:
            continue


class Roots:
    """The template's root and the user's, and the way from one to the other."""

    def __init__(self) -> None:
        self._template = os.open("/", os.O_PATH | os.O_DIRECTORY)
        self._user = -1

    def enter_user(self) -> None:
        """Make the user's root this process's own. Imports end here: later ones would come from the user's files."""
        if self._user < 0:
            self._user = os.open(USER_ROOT, os.O_PATH | os.O_DIRECTORY)
        sys.path.clear()
        sys.meta_path[:] = sys.meta_path[:2]  # builtin and frozen modules
        _enter(self._user)

    def enter_template(self) -> None:
        """Go back for a moment, to start something of ours. Without effect before `enter_user`."""
        if self._user >= 0:
            _enter(self._template)

    def leave_template(self) -> None:
        """Undo `enter_template`."""
        if self._user >= 0:
            _enter(self._user)

    def narrow(self, path: str) -> None:
        """Make a directory of the user's root this process's own root, for good."""
        self._user = os.open(path, os.O_PATH | os.O_DIRECTORY)
        _enter(self._user)


def _enter(root: int) -> None:
    os.fchdir(root)
    os.chroot(".")


def mount_user_root(request: Configure) -> list[str]:
    """Mount the writable disk over the template. Returns what could not be limited. Raises `OSError`."""
    problems: list[str] = []
    size = f"size={request.disk_mb}m,mode=755"
    inodes = max(16384, (request.disk_mb << 20) // _BYTES_PER_INODE)
    if _mount("tmpfs", _DISK, "tmpfs", 0, f"{size},nr_inodes={inodes}"):
        _check_errno(_mount("tmpfs", _DISK, "tmpfs", 0, size), "mounting the sandbox's disk failed")
        problems.append("this engine can't limit the number of files; they count as memory on the host")
    upper, work = f"{_DISK}/up", f"{_DISK}/work"
    os.mkdir(upper, 0o755)
    os.mkdir(work, 0o755)
    options = f"lowerdir=/,upperdir={upper},workdir={work}"
    _check_errno(_mount("overlay", USER_ROOT, "overlay", 0, options), "mounting the sandbox's root failed")
    for name in ("dev", "sys"):
        error = _mount(f"/{name}", f"{USER_ROOT}/{name}", "none", _MS_BIND | _MS_REC)
        if error:
            problems.append(f"/{name} could not be shown in the sandbox: {os.strerror(error)}")
    shared = f"{USER_ROOT}/dev/shm"
    os.makedirs(shared, exist_ok=True)
    shared_mb = max(16, min(request.memory_mb // 2, request.disk_mb))
    error = _mount("tmpfs", shared, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={shared_mb}m,mode=1777")
    if error:
        problems.append(f"/dev/shm could not be mounted: {os.strerror(error)}")
    return problems


def make_mount_point(path: str) -> str:
    """Make a directory and return it without links in its path. Runs in the user's root. Raises `OSError`."""
    os.makedirs(path, exist_ok=True)
    return os.path.realpath(path)


def mount_attachment(name: str, target: str, *, read_only: bool) -> None:
    """Show an attachment at a path of the user's root that has no links. Needs the template's root.

    The host refuses writes to a read-only one in any case. This kernel would report some of them as done.
    """
    error = _mount(f"{ATTACHMENTS}/{name}", f"{USER_ROOT}{target}", "none", _MS_BIND)
    if read_only and not error:
        error = _mount("none", f"{USER_ROOT}{target}", "none", _MS_BIND | _MS_REMOUNT | _MS_RDONLY)
    _check_errno(error, f"mounting {target} failed")


def open_disk() -> int:
    """Return a descriptor by which the disk's use can be read after the chroot. Needs the template's root."""
    return os.open(_DISK, os.O_PATH | os.O_DIRECTORY)


def name_machine(hostname: str, entropy: str) -> None:
    """Set hostname and machine id, and make the directories users assume. Runs in the user's root."""
    hosts = f"127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n"
    _set_hostname(hostname)
    for path, text in (("/etc/hostname", hostname), ("/etc/hosts", hosts), ("/etc/machine-id", _identity(entropy))):
        os.makedirs("/etc", exist_ok=True)
        if os.path.islink(path):
            os.unlink(path)
        _write(path, text)
    for path in _ASSUMED_DIRECTORIES:
        os.makedirs(path, exist_ok=True)
    for path in ("/tmp", "/var/tmp"):
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o1777)


def rename_machine(hostname: str, entropy: str) -> list[str]:
    """Give a clone a hostname and machine id of its own. Runs in the user's root. Returns what could not be done.

    The user has had the files: they may be gone, directories, or anything else.
    """
    problems: list[str] = []
    before = os.uname().nodename
    _set_hostname(hostname)
    try:
        with open("/etc/hosts", "rb") as file:
            hosts = file.read(_HOSTS_BYTES).decode(errors="surrogateescape").replace(before, hostname)
        new = {"/etc/hostname": hostname, "/etc/hosts": hosts, "/etc/machine-id": _identity(entropy)}
    except OSError:
        new = {"/etc/hostname": hostname, "/etc/machine-id": _identity(entropy)}
    for path, text in new.items():
        temporary = f"{path}.{entropy[:8]}"
        try:
            _write(temporary, text)  # beside it and renamed, so that a full disk or a FIFO there does no harm
            os.replace(temporary, path)
        except OSError as error:
            problems.append(f"{path} is still that of the sandbox it was cloned from: {error.strerror}")
            with suppress(OSError):
                os.unlink(temporary)
    return problems


def _identity(entropy: str) -> str:
    return hashlib.sha256(bytes.fromhex(entropy) + b"machine-id").hexdigest()[:32]


def _set_hostname(hostname: str) -> None:
    name = hostname.encode()
    _check(_libc.sethostname(name, len(name)), "sethostname")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text if text.endswith("\n") else f"{text}\n")


def limit(tasks: int, cpus: int) -> list[str]:
    """Set what every process started from now on inherits. Returns what could not be set."""
    problems: list[str] = []
    present = os.cpu_count() or 1  # as many as where the checkpoint was made; a restore does not change that
    if cpus > present:
        problems.append(f"the sandbox sees {present} processors, not {cpus}: its template was baked with so many")
    elif 0 < cpus < present:
        os.sched_setaffinity(0, range(cpus))
    hard_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = _OPEN_FILES if hard_files == resource.RLIM_INFINITY else min(_OPEN_FILES, hard_files)
    for name, kind, value in (
        ("processes", resource.RLIMIT_NPROC, tasks),
        ("core dumps", resource.RLIMIT_CORE, 0),
        ("open files", resource.RLIMIT_NOFILE, files),
    ):
        try:
            resource.setrlimit(kind, (value, value))
        except (OSError, ValueError) as error:
            problems.append(f"the limit of {name} could not be set to {value}: {error}")
    return problems


def _prctl(option: int, value: int) -> int:
    return _libc.prctl(option, value, 0, 0, 0)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> int:
    """Mount, and return 0 or the error number."""
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    return ctypes.get_errno() if _libc.mount(*arguments) else 0


def _check(result: int, what: str) -> None:
    if result:
        _check_errno(ctypes.get_errno(), what)


def _check_errno(error: int, what: str) -> None:
    if error:
        raise OSError(error, f"{what}: {os.strerror(error)}")
