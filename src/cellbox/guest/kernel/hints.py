"""One sentence on what to do next, for the errors that models run into most."""

from __future__ import annotations

import bdb
import re
from collections.abc import Iterable

NO_STDIN = "There is nobody to type an answer in this sandbox: pass the value in the code instead of asking for it."

_PIP_NAMES = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "fitz": "PyMuPDF",
    "git": "GitPython",
    "jwt": "PyJWT",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "pptx": "python-pptx",
    "psycopg2": "psycopg2-binary",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "umap": "umap-learn",
    "usb": "pyusb",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
}


_INSTALLS = re.compile(r"\b(pip3?|uv|conda|mamba|npm|apt|apt-get)\b.*\b(install|add|download|update)\b")
NO_NETWORK = (
    "The sandbox has no network, so nothing can be installed from an index: use what the template has, or upload the "
    "package's files and install those."
)


class StdinNotAvailableError(EOFError, NotImplementedError):
    """Raised at once by everything that would wait for a person. An `EOFError`, which scripts know how to handle."""


def for_error(error: BaseException) -> str:
    """Return a hint, or an empty string."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        root = error.name.partition(".")[0]
        package = _PIP_NAMES.get(root, root)
        return (
            f"Install it with `%pip install {package}` in a cell of its own, then import it again; if pip can't reach "
            f"a package index, this sandbox has no network and the module must come with its template."
        )
    if isinstance(error, (StdinNotAvailableError, bdb.BdbQuit)):
        return NO_STDIN
    return ""


def for_commands(commands: Iterable[str]) -> str:
    """Return a hint for shell commands that failed, or an empty string."""
    if any(map(_INSTALLS.search, commands)) and not has_network():
        return NO_NETWORK
    return ""


def has_network() -> bool:
    """Tell whether there is a way out beside the loopback interface."""
    for path in ("/proc/net/route", "/proc/net/ipv6_route"):
        try:
            with open(path) as table:
                lines = table.read(65536).splitlines()
        except OSError:
            continue
        if path.endswith("/route"):
            lines = lines[1:]
        if any(line.split() and "lo" not in (line.split()[0], line.split()[-1]) for line in lines):
            return True
    return False
