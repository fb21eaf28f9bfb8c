"""Standard input of a kernel: there is none, and everything that asks for it is told so at once."""

from __future__ import annotations

import builtins
import getpass
import io

from cellbox.guest.kernel.hints import NO_STDIN, StdinNotAvailableError


class NoInput(io.TextIOBase):
    """`sys.stdin`. Its file descriptor is at its end, for what reads that directly."""

    encoding = "utf-8"
    errors = "strict"
    name = "<stdin>"
    mode = "r"

    @property
    def buffer(self) -> NoInput:
        return self

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def isatty(self) -> bool:
        return False

    def read(self, *_size):
        raise StdinNotAvailableError(f"sys.stdin: {NO_STDIN}")

    readline = readlines = read1 = readinto = __next__ = read

    def close(self) -> None:
        """Stays open, as the kernel's other streams do."""


def install() -> None:
    """Replace the functions that wait for a person."""

    def refuse(prompt: object = "", *_args: object, **_options: object):
        """Raise `StdinNotAvailableError`: this sandbox has no standard input."""
        raise StdinNotAvailableError(f"input({str(prompt)!r}): {NO_STDIN}")

    refuse.__name__ = "input"
    builtins.input = refuse
    getpass.getpass = refuse
