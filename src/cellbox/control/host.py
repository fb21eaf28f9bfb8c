"""What this host has left."""

from __future__ import annotations

from pathlib import Path

_RESERVE_BYTES = 512 * 1024**2


def memory() -> tuple[int, int]:
    """Return the host's total and available memory in bytes."""
    fields: dict[str, int] = {}
    for line in Path("/proc/meminfo").read_text().splitlines()[:3]:
        name, value = line.split()[:2]
        fields[name] = int(value) * 1024
    return fields["MemTotal:"], fields["MemAvailable:"]


def reserve_bytes(total: int) -> int:
    """How much of the host's memory no new sandbox may eat into: half a gigabyte, or a tenth of it all."""
    return max(_RESERVE_BYTES, total // 10)
