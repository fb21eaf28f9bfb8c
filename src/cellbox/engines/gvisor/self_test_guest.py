"""The smallest possible guest: a static program that forks once, then writes back what it reads and ends at EOF.

It forks because there are builds of runsc that start well and crash at the first fork of their guest.

With it a probe can boot, save and restore a real machine on any host without a root filesystem at hand.
"""

from __future__ import annotations

import platform
import struct
from pathlib import Path

PROGRAM = "/echo"
"""Where the program is in the root filesystem, and its whole command line."""

_LOAD_ADDRESS = 0x400000

# child = fork(); if child == 0: exit(0); wait4(-1)
# loop: n = read(0, below the stack, 4096); if n <= 0: exit(0); write(1, the same, n); again
_X86_64 = (
    "6a39 58 0f05 85c0 7432 4883cfff 31f6 31d2 4531d2 6a3d 58 0f05"
    "31c0 31ff 488db42400e0ffff ba00100000 0f05 85c0 7e0b 89c2 6a01 58 89c7 0f05 ebde 31ff b83c000000 0f05"
)
_AARCH64 = (
    "200280d2 010080d2 020080d2 030080d2 040080d2 881b80d2 010000d4 800200b4"
    "00008092 010080d2 020080d2 030080d2 882080d2 010000d4"
    "000080d2 e10740d1 020082d2 e80780d2 010000d4 1f0000f1 ed000054 e20300aa 200080d2 e10740d1 080880d2 010000d4"
    "f4ffff17 000080d2 a80b80d2 010000d4"
)
_CODE = {"x86_64": (62, _X86_64), "aarch64": (183, _AARCH64)}
"""Machine → (number of the machine in an ELF header, instructions)."""


def is_available() -> bool:
    """Is there a program for this processor?"""
    return platform.machine() in _CODE


def write_rootfs(directory: Path) -> None:
    """Make `directory`, which exists, a root filesystem that holds the program."""
    number, code = _CODE[platform.machine()]
    body = bytes.fromhex(code.replace(" ", ""))
    header_size, segment_size = 64, 56
    entry = _LOAD_ADDRESS + header_size + segment_size
    length = header_size + segment_size + len(body)
    header = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 2, number, 1, entry, header_size, 0, 0, header_size, segment_size, 1, 64, 0, 0)
    )
    readable_executable = 5
    segment = struct.pack("<IIQQQQQQ", 1, readable_executable, 0, _LOAD_ADDRESS, _LOAD_ADDRESS, length, length, 0x1000)
    program = directory / PROGRAM.lstrip("/")
    program.write_bytes(header + segment + body)
    program.chmod(0o755)
    for name in ("proc", "sys", "dev", "tmp"):
        (directory / name).mkdir(exist_ok=True)
