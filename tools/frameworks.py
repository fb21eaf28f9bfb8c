"""Makes the virtual environments for the tests of agent frameworks: one each, since the frameworks exclude each other.

    python tools/frameworks.py           all of them
    python tools/frameworks.py NAME…     only these

They lie in the folder `frameworks` of the environment this runs in, and are made anew when their lock file changes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "frameworks"
NAMES = sorted(path.parent.name for path in TESTS.glob("*/requirements.lock"))
_STAMP = ".made-from"
_MAX_AT_ONCE = 2


def ensure(name: str) -> Path:
    """Return the interpreter of a framework's environment, which is made if need be.

    Raises:
        subprocess.CalledProcessError: It could not be made; what uv had to say is on standard error.
    """
    lock = TESTS / name / "requirements.lock"
    folder = Path(sys.prefix) / "frameworks" / name
    python = folder / "bin" / "python"
    stamp = folder / _STAMP
    wanted = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _uv("venv", "--python", sys.executable, str(folder))
    _uv(
        "pip", "install", "--python", str(python), "--no-deps", "--require-hashes", "--only-binary", ":all:",
        "--index-strategy", "unsafe-best-match", *_index_options(), "--requirement", str(lock),
    )  # fmt: skip
    packages = next((folder / "lib").glob("python3*/site-packages"))
    (packages / "cellbox.pth").write_text(f"{ROOT / 'src'}\n")
    stamp.write_text(wanted)
    return python


def _uv(*arguments: str) -> None:
    environment = dict(os.environ)
    if (cert := _pip_setting("cert")) and "SSL_CERT_FILE" not in environment:
        environment["SSL_CERT_FILE"] = cert[0]
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "--quiet", "--no-config", *arguments], check=True, env=environment, timeout=900)


def _index_options() -> Iterator[str]:
    """Where pip on this machine gets its packages from, as options of uv."""
    for setting, option in (
        ("index-url", "--default-index"),
        ("extra-index-url", "--index"),
        ("find-links", "--find-links"),
    ):
        for value in _pip_setting(setting):
            yield from (option, value)


def _pip_setting(name: str) -> list[str]:
    """The words of one of pip's settings, whichever file or variable it comes from; the last one that is set counts."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True, timeout=60
    )
    found = re.findall(rf"^[^\n=]*\.{name}='(.*)'$", listed.stdout, re.MULTILINE)
    return found[-1].replace("\\n", " ").split() if found else []


def main() -> None:
    names = sys.argv[1:] or NAMES
    if unknown := set(names) - set(NAMES):
        sys.exit(f"no framework {min(unknown)!r}; there are {', '.join(NAMES)}")
    with ThreadPoolExecutor(_MAX_AT_ONCE) as pool:
        for name, python in zip(names, pool.map(ensure, names), strict=True):
            print(f"{name}: {python.parent.parent}")


if __name__ == "__main__":
    main()
