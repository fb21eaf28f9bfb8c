"""Makes the private interpreter out of the template's own Python. Runs in a sandbox, under that Python.

The result stands alone: interpreter, C library, loader and a trimmed standard library as bytecode, in one directory
that works in any root filesystem of the same architecture, musl or no libc at all.
"""

# Runs in a sandbox, alone, where start-up time counts and what it prints is the log.
# ruff: noqa: PERF401, PTH103, PTH118, PTH122, PTH208, T201

import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig

TARGET = "/.cellbox/runtime"
# Nothing the guest needs, or (ssl, hashlib's OpenSSL) of no use to it and large: `hashlib` falls back to built-in code.
LEFT_OUT_PACKAGES = {
    "__phello__", "_pyrepl", "curses", "dbm", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "sqlite3", "test",
    "tkinter", "turtledemo", "unittest", "venv", "wsgiref", "xmlrpc", "dist-packages", "site-packages", "__pycache__",
    "lib-dynload",
}  # fmt: skip
LEFT_OUT_MODULES = {
    "turtle",
    "pydoc",
    "antigravity",
    "this",
    "doctest",
    "pdb",
    "cProfile",
    "profile",
    "pstats",
    "imaplib",
}
LEFT_OUT_EXTENSIONS = re.compile(
    r"_(ssl|hashlib|sqlite3|curses|curses_panel|dbm|gdbm|tkinter|uuid|crypt|testcapi|testinternalcapi|testbuffer"
    r"|testclinic\w*|testlimitedcapi|testimportmultiple|testmultiphase|testsinglephase|testexternalinspection"
    r"|ctypes_test|xxtestfuzz|interpchannels|interpqueues|interpreters|codecs_\w+)\.|readline\.|nis\.|ossaudiodev\.|xx"
)


def main() -> None:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    library = sysconfig.get_path("stdlib")
    binary = os.path.realpath(sys.executable)
    shutil.rmtree(TARGET, ignore_errors=True)
    stdlib = f"{TARGET}/lib/{version}"
    os.makedirs(f"{TARGET}/bin")
    os.makedirs(f"{stdlib}/lib-dynload")
    shutil.copy(binary, f"{TARGET}/bin/python3")
    copy_library(library, stdlib)
    extensions: list[str] = []
    for name in sorted(os.listdir(f"{library}/lib-dynload")):
        if not LEFT_OUT_EXTENSIONS.match(name):
            extensions.append(shutil.copy(f"{library}/lib-dynload/{name}", f"{stdlib}/lib-dynload/{name}"))
    copy_shared_objects([f"{TARGET}/bin/python3", *extensions])
    size = sum(os.lstat(f"{folder}/{name}").st_size for folder, _, names in os.walk(TARGET) for name in names)
    print(f"private interpreter: {version}, {size / 1e6:.1f} MB")


def copy_library(source: str, target: str) -> None:
    for folder, directories, names in os.walk(source):
        directories[:] = sorted(
            name for name in directories if name not in LEFT_OUT_PACKAGES and not name.startswith("config-")
        )
        inner = os.path.relpath(folder, source)
        os.makedirs(os.path.join(target, inner), exist_ok=True)
        for name in sorted(names):
            stem, extension = os.path.splitext(name)
            if extension != ".py" or stem in LEFT_OUT_MODULES:
                continue
            # Bytecode beside no source: half the size, nothing to check against, no cache directory to look into.
            py_compile.compile(
                os.path.join(folder, name),
                cfile=os.path.join(target, inner, stem + ".pyc"),
                dfile=os.path.normpath(os.path.join(inner, name)),
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )


def copy_shared_objects(binaries: list[str]) -> None:
    listing = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=True).stdout
    missing = re.findall(r"(\S+) => not found", listing)
    if missing:
        raise SystemExit(f"libraries not found: {', '.join(missing)}")
    for name, path in sorted(set(re.findall(r"(\S+) => (/\S+)", listing))):
        shutil.copy(os.path.realpath(path), f"{TARGET}/lib/{name}")
    loader = re.search(r"^\s*(/\S*/ld-linux\S*)", listing, re.MULTILINE)
    if loader is None:
        raise SystemExit("no dynamic loader in the output of ldd")
    shutil.copy(os.path.realpath(loader[1]), f"{TARGET}/lib/ld.so")


if __name__ == "__main__":
    main()
