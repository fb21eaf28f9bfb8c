"""Gives a root filesystem what every template has: mount points, usual directories, and settings without a network.

Runs in a sandbox, under the private interpreter: on `/` itself, or on another root that is bound to a directory
(an imported one), into which it then also copies the interpreter. Idempotent; what a template says for itself is kept.
"""

# Runs in a sandbox, alone, where start-up time counts and what it prints is the log.
# ruff: noqa: PTH101, PTH102, PTH108, PTH110, PTH112, PTH114, PTH120, PTH207, PTH211, S105, S108

import glob
import os
import shutil
import sys

DIRECTORIES = {
    "/.cellbox": 0o755,
    "/.cellbox/rw": 0o755,
    "/.cellbox/root": 0o755,
    "/.cellbox/in": 0o755,
    "/.cellbox/out": 0o755,
    "/proc": 0o555,
    "/sys": 0o555,
    "/dev": 0o755,
    "/dev/pts": 0o755,
    "/dev/shm": 0o1777,
    "/etc": 0o755,
    "/run": 0o755,
    "/tmp": 0o1777,
    "/var/tmp": 0o1777,
    "/root": 0o700,
    "/workspace": 0o777,
    "/work": 0o777,
    "/app": 0o755,
    "/home/panda": 0o755,
    "/mnt/session/outputs": 0o777,
}
# Loopback answers at once ("connection refused"), so a name look-up fails in a millisecond instead of seconds.
RESOLVER = """\
# This sandbox has no network but loopback.
nameserver 127.0.0.1
options timeout:1 attempts:1
"""
HOSTS = """\
127.0.0.1 localhost
::1 localhost ip6-localhost ip6-loopback
"""
# One interpreter for everything: pip may install into it. No retries: without a network they only cost time.
PIP = """\
[global]
disable-pip-version-check = true
retries = 0
timeout = 5
no-input = true

[install]
root-user-action = ignore
"""
PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
GROUP = "root:x:0:\nnogroup:x:65534:\n"


def main() -> None:
    target = sys.argv[1] if len(sys.argv) > 1 else "/"
    if target != "/":
        # Whatever the image had under our name is no concern of ours, and must not steer what we write.
        remove(f"{target}/.cellbox")
        os.mkdir(f"{target}/.cellbox")
        shutil.copytree("/.cellbox/runtime", f"{target}/.cellbox/runtime", symlinks=True)
        os.chroot(target)  # from here on the image's own links lead nowhere else
        os.chdir("/")
    os.umask(0)
    for path, mode in DIRECTORIES.items():
        make_directory(path, mode)
    write("/etc/resolv.conf", RESOLVER)
    write("/etc/hosts", HOSTS)
    write("/etc/hostname", "sandbox\n")
    write("/etc/pip.conf", PIP)
    for path, text in (("/etc/passwd", PASSWD), ("/etc/group", GROUP)):
        if not os.path.exists(path):
            write(path, text)
    for path in glob.glob("/usr/lib/python3*/EXTERNALLY-MANAGED"):
        os.unlink(path)
    for folder in ("/usr/bin", "/usr/local/bin"):
        if os.path.exists(f"{folder}/python3") and not os.path.lexists(f"{folder}/python"):
            os.symlink("python3", f"{folder}/python")


def make_directory(path: str, mode: int) -> None:
    if os.path.isdir(path):
        if path.startswith("/.cellbox") or path in ("/tmp", "/var/tmp"):
            os.chmod(path, mode)
        return
    if os.path.lexists(path):
        remove(path)
    parent = os.path.dirname(path)
    if parent != "/":
        make_directory(parent, 0o755)
    os.mkdir(path, mode)


def write(path: str, text: str) -> None:
    remove(path)  # it may be a link
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o644)


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


if __name__ == "__main__":
    main()
