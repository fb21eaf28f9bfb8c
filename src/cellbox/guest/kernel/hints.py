"""One sentence on what to do next, for the errors that models run into most."""

from __future__ import annotations

import bdb

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
